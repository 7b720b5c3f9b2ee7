"""nginx as a canned server: a process and a folder of its own, gone when the block ends.

Each body is a file; a POST to it is answered at once from the page cache. Its core is kept awake:
waking it up would be in the sending tool's time.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from embbench.load.awake import CoreKeptAwake

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  sendfile on;
  keepalive_requests 1000000000;
  client_max_body_size 0;
  client_body_buffer_size 2m;
  client_body_temp_path {folder}/temp;
  proxy_temp_path {folder}/temp;
  fastcgi_temp_path {folder}/temp;
  uwsgi_temp_path {folder}/temp;
  scgi_temp_path {folder}/temp;
  open_file_cache max=100;
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    root {folder}/www;
    default_type application/json;
    error_page 405 =200 $uri;
  }}
}}
"""


def nginx_path() -> str | None:
    """Debian keeps it out of a user's PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def canned_nginx(bodies: Mapping[str, bytes], cpu: int | None) -> Iterator[str]:
    """Base URL of an nginx that answers ``/NAME/v1/embeddings`` with ``bodies[NAME]``."""
    nginx = nginx_path()
    assert nginx is not None
    with tempfile.TemporaryDirectory(prefix="embbench-floor-") as name:
        folder, port = Path(name), free_port()
        for key, body in bodies.items():
            path = folder / "www" / key / "v1" / "embeddings"
            path.parent.mkdir(parents=True)
            path.write_bytes(body)
        folder.chmod(0o755)
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port))
        pin = [] if cpu is None else ["taskset", "-c", str(cpu)]
        process = subprocess.Popen([*pin, nginx, "-c", str(config), "-p", str(folder)])
        try:
            for _ in range(200):
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.02)
            with CoreKeptAwake(cpu):
                yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
