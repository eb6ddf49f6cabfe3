"""The Site that planning gets for a run of this machine's store: the same wherever the run is started from."""

from __future__ import annotations

from pathlib import Path

from seatrial.backends.base import Backend, EngineFacts
from seatrial.planning.host import HostFacts
from seatrial.planning.site import Site
from seatrial.runs.run import Run
from seatrial.runs.store import project_key
from seatrial.system import agent_archive

#: In the user's state folder: archives of the agent, one for each version of it.
AGENT = "agent"


def run_site(run: Run, project: Path, backend: Backend, engine: EngineFacts, host: HostFacts) -> Site:
    """What every plan for ``run`` stands on; ``dataclasses.replace`` adds what is special about one."""
    return Site(
        run_id=run.id,
        record=run.folder,
        place=run.place,
        outputs=run.outputs,
        project_cache=host.cache_folder / "projects" / project_key(project),
        backend=backend,
        engine=engine,
        host=host,
        agent_archive=agent_archive.build(host.state_folder / AGENT, compiled=backend.images is not None),
    )
