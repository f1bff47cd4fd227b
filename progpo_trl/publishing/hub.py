"""Uploads a prepared folder to the Hugging Face Hub in one commit."""

from __future__ import annotations

from pathlib import Path

from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.files import is_ours
from progpo_trl.settings_values import one_line


def upload(
    folder: Path, repo: str, *, private: bool = False, token: str | None = None, message: str | None = None
) -> str:
    """Create `repo` where it is not there yet, commit every file of `folder` to it, and return its address.

    In the same commit what an earlier upload left is removed: files of the kinds that publishing writes and that are
    not in `folder`, such as an adapter where a whole model goes now. Other files in the repository stay.

    token: default: the one of the login or of $HF_TOKEN. Raises PublishError with one line: what went wrong, what to
    do, and where the folder is.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    def failed(what: str) -> PublishError:
        return PublishError(f"{what}; nothing was uploaded, the prepared folder is {folder}")

    if constants.is_offline_mode():
        raise failed("HF_HUB_OFFLINE is set: unset it to upload")
    if not (token or get_token()):
        raise failed("no Hugging Face token: run `hf auth login`, or set HF_TOKEN")
    api = HfApi(token=token, library_name="progpo_trl")
    try:
        address = api.create_repo(repo, private=private or None, exist_ok=True)
        repo = address.repo_id  # with the user's name, where it was left out
        there = api.model_info(repo)
        if private and not there.private:
            raise failed(f"{repo} is there already and is public: make it private on the Hub, or leave out --private")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        new = {path.relative_to(folder).as_posix(): path for path in files}
        old = sorted(file.rfilename for file in there.siblings or [])
        changes = [CommitOperationAdd(name, path) for name, path in new.items()]
        changes += [CommitOperationDelete(name) for name in old if is_ours(name) and name not in new]
        api.create_commit(repo, changes, commit_message=message or "Upload a model trained with progpo_trl")
    except PublishError:
        raise
    except LocalTokenNotFoundError as error:
        raise failed("no Hugging Face token: run `hf auth login`, or set HF_TOKEN") from error
    except HfHubHTTPError as error:
        raise failed(_refused(error, repo)) from error
    except (OfflineModeIsEnabled, HTTPError) as error:  # HTTPError: of the connection, whichever client is used
        raise failed(f"the Hub cannot be reached ({one_line(error)}): try again when it can") from error
    except (ValueError, OSError) as error:
        raise failed(one_line(error)) from error
    return str(address)


def _refused(error, repo: str) -> str:
    status = error.response.status_code if error.response is not None else None
    said = one_line(error.server_message or error)
    if status == 401:
        return "the Hub does not accept the token: run `hf auth login`, or set HF_TOKEN to a valid one"
    if status == 403:
        return f"the token may not write to {repo} ({said}): use one with write permission, or another --repo"
    if status == 404:
        return f"{repo} is not there, or the token may not see it: check --repo"
    return f"the Hub refused the upload ({status}: {said})"
