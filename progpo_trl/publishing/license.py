"""The licence of published weights, as the metadata of a card names it.

Ids: those of the Hub's documentation, huggingface.co/docs/hub/repositories-licenses.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from progpo_trl.publishing.errors import PublishError

IDS = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    openrail++ afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda
    cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0
    cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
    cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1
    eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 lgpl-lr isc h-research intel-research
    lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openmdw-1.1 osl-3.0 postgresql ofl-1.1
    ncsa unlicense zlib pddl deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1
    llama3.2 llama3.3 llama4 grok2-community gemma unknown other
    """.split()
)


def license_metadata(license: str | None, name: str | None = None, link: str | None = None) -> dict[str, str]:
    """What a card's metadata says of the licence.

    license: an id that the Hub knows; for `other`, name: an id of one's own, and link: where its text is. Raises
    PublishError for anything else.
    """
    if license != "other":
        for option, value in (("--license-name", name), ("--license-link", link)):
            if value is not None:
                raise PublishError(f"{option}: only goes with --license other")
        if license is None:
            return {}
        if license not in IDS:
            other = "for a licence that is not on its list: --license other --license-name ID --license-link URL"
            # Only what may have been meant: the nearest of all would be a licence that grants something else.
            near = get_close_matches(license.lower(), IDS, n=1, cutoff=0.7)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise PublishError(f"--license {license!r:.80}: the Hub knows no such id{meant}; {other}")
        return {"license": license}
    if name is None or link is None:
        raise PublishError("--license other: needs --license-name ID and --license-link URL, which say what it is")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{0,95}", name):
        raise PublishError(
            f"--license-name {name!r:.80}: must be small letters, digits, '.', '+' and '-', such as my-licence"
        )
    if not re.fullmatch(r"https?://[^\s<>\"'\\]+", link):
        raise PublishError(f"--license-link {link!r:.80}: must be an address that begins with https://")
    return {"license": "other", "license_name": name, "license_link": link}
