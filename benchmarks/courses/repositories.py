"""The repositories, by commit, and how they come onto this machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trnrt.errors import OptionError


@dataclass(frozen=True)
class Repository:
    """A public repository on GitHub at a commit. ``alias``: another name that its folder may have."""

    name: str
    commit: str
    alias: str = ""

    @property
    def url(self) -> str:
        return f"https://github.com/{self.name}"


CS149 = Repository("stanford-cs149/asst4-trainium2", "67a1f8bf24db0f12e8b95aaf13758b512d5e4b7d")
CS149_OF_2024 = Repository("stanford-cs149/asst4-trainium", "859c0e3ee68c74d3fa6800e7a282cee3c69ed3c4")
CS149_SOLVED = Repository("chenhzhu/asst4-trainium2", "fecd8c8b3399ff78dee8b2bac60c826d0287f563")
CS152 = Repository("ucb-152/lab6", "687dc2fda18a2d200782575d5b73ecc77844a9ce")
CS152_SOLVED = Repository("isaack0ng/CS152_lab6", "b0ec879f891841860000d6fa01099d4af9591cd9")
SAMPLES = Repository("aws-neuron/nki-samples", "28673b467fdddb4d55175e67536843ba36098ceb", "nki-samples")


def bring(repository: Repository, source: Path | None, folder: Path) -> Path:
    """The repository's tree, for reading: the copy in ``source``, or a checkout of its commit in ``folder``.

    Raises:
        OptionError: if ``source`` has no such folder, or GitHub isn't reachable.
    """
    if source is not None:
        names = [repository.name.replace("/", "+"), repository.alias or repository.name.partition("/")[2]]
        found = next((source / name for name in names if (source / name).is_dir()), None)
        if found is None:
            raise OptionError(f"{source} has no folder {' or '.join(names)}", hint="leave out --from to use GitHub")
        return found.resolve()
    path = folder / repository.name.replace("/", "+")
    if not path.exists():
        for arguments in (
            ("init", "--quiet", str(path)),
            ("-C", str(path), "fetch", "--quiet", "--depth", "1", repository.url, repository.commit),
            ("-C", str(path), "checkout", "--quiet", "--detach", "FETCH_HEAD"),
        ):
            _git(repository, arguments)
    return path


def _git(repository: Repository, arguments: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise OptionError(f"can't run git: {error}") from None
    if done.returncode:
        shutil.rmtree(arguments[1], ignore_errors=True)
        raise OptionError(
            f"can't fetch {repository.url} at {repository.commit}: {done.stderr.strip()}",
            hint="--from DIR uses copies that are there already",
        )
