"""Peak memory of one pass of the update, from the dimensions of the model: forward, loss and backward of a few rows.

Nothing is measured here. In the repository, benchmarks/update_memory.py holds the formula against measurement on a
CPU, benchmarks/gpu_check.py on a GPU; docs/scaling.md has the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 1e9

# TRL's chunked head (trl.kernels.chunked_logprob): logits exist as one tile of at most so many tokens x vocabulary.
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
# Tiles alive at once in its backward pass. With Triton the tile turns into its gradient in place; the torch code that
# stands in for it on CPUs holds the tile, its scaled copy, z, log p, p, the gradient, two temporaries of its sum, and
# a boolean.
TILES_TRITON, TILES_TORCH = 1.0, 8.25


@dataclass(frozen=True)
class Dims:
    """Dimensions of a Qwen2.5-architecture model, as in its config.json."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool

    @property
    def kv_width(self) -> int:
        return self.hidden // self.heads * self.kv_heads

    @property
    def linear_shapes(self) -> list[tuple[int, int]]:
        """(in, out) of the linear maps of a layer."""
        h, kv, i = self.hidden, self.kv_width, self.intermediate
        return [(h, h), (h, kv), (h, kv), (h, h), (h, i), (h, i), (i, h)]

    @property
    def layer(self) -> int:
        """Parameters of a layer: linear maps, biases of q, k and v, two norms."""
        return sum(a * b for a, b in self.linear_shapes) + self.hidden + 2 * self.kv_width + 2 * self.hidden

    @property
    def embeddings(self) -> int:
        """Parameters of the embedding and the head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.embeddings + self.layers * self.layer + self.hidden

    def lora(self, rank: int) -> int:
        """Parameters of an adapter on all linear maps but the head (`lora_target_modules: all-linear`)."""
        return self.layers * sum(rank * (a + b) for a, b in self.linear_shapes)

    def kv_bytes(self, element: int = 2) -> int:
        """Bytes of keys and values a token leaves in the cache."""
        return 2 * self.layers * self.kv_width * element


QWEN = {
    "0.5B": Dims(896, 24, 4864, 14, 2, 151936, True),
    "1.5B": Dims(1536, 28, 8960, 12, 2, 151936, True),
    "7B": Dims(3584, 28, 18944, 28, 4, 152064, False),
}


@dataclass(frozen=True)
class Precision:
    """Bytes of an element: of the residual stream, of what linear maps and attention keep, and of weight gradients."""

    stream: int
    inner: int
    gradient: int


FLOAT32 = Precision(4, 4, 4)
# Float32 weights under autocast (full fine-tune on one GPU or with DDP): the embedding gives a float32 stream.
AUTOCAST = Precision(4, 2, 4)
BFLOAT16 = Precision(2, 2, 2)


def layer_bytes(dims: Dims, tokens: int, precision: Precision) -> int:
    """What a decoder layer keeps for its backward pass, besides its input.

    Norms, which compute in float32, keep their input (the first one's is the layer's) and the normalised input;
    attention keeps q, the output, k and v of its own few heads (rows stand at the left edge, so plain causal attention
    serves and there is no mask), and one float per head and token; the MLP keeps gate, up, silu(gate) and their
    product.
    """
    h, s, e = dims.hidden, precision.stream, precision.inner
    # Normalised inputs, the second residual as float32 (the first too where the stream is not), inputs of the maps.
    norms = tokens * (h * (2 * s + 4 + (0 if s == 4 else 4) + 2 * e) + 2 * 4)
    attention = tokens * (2 * (h + dims.kv_width) * e + dims.heads * 4)
    return norms + attention + tokens * 4 * dims.intermediate * e


def update_peak(
    dims: Dims,
    rows: int,
    length: int,
    scored: int,
    precision: Precision = FLOAT32,
    *,
    checkpointing: bool = False,
    tiles: float = TILES_TORCH,
    trained: int | None = None,
) -> dict[str, float]:
    """Bytes on top of weights and batch at three moments of a pass over `rows` x `length` tokens; "peak" is the most.

    length: of the longest row. scored: sampled tokens of the whole pass, which alone meet the head. trained:
    parameters that take a gradient (default: all); the gradients are counted. The moments are: the head's backward
    pass, the last layer's MLP, and the gradient of the embedding. Optimizer states, the reference model and rollouts
    come on top.
    """
    tokens, h, s, e = rows * length, dims.hidden, precision.stream, precision.inner
    one = layer_bytes(dims, tokens, precision)
    kept = dims.layers * tokens * h * s + (0 if checkpointing else dims.layers * one)
    kept += 2 * tokens * h * s  # the last norm
    full = trained is None
    head_gradient = dims.vocabulary * h * 4 if full else 0
    chosen = scored * h * e
    tile = min(scored, TILE_TOKENS) * min(TILE_VOCABULARY, dims.vocabulary) * e
    head = kept + chosen + scored * h * 4 + tiles * tile + head_gradient
    mlp = kept + tokens * (3 * dims.intermediate * e + 3 * h * s) + (one if checkpointing else 0)
    mlp += (dims.vocabulary * h + dims.layer) * precision.gradient if full else 0
    gradients = (dims.parameters if full else trained) * (precision.gradient if full else 4)
    embedding = gradients + tokens * h * s
    if full and dims.tied:
        # The embedding's own gradient is a second tensor before it is added to the head's.
        embedding += dims.vocabulary * h * precision.gradient
    moments = {"head": head, "mlp": mlp, "embedding": embedding}
    return moments | {"peak": max(moments.values())}
