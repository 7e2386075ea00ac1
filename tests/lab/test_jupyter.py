"""JupyterLab's start."""

import socket

import pytest

from lab import jupyter


@pytest.mark.slow
def test_a_port_that_another_takes_at_the_last_moment_is_left_to_him(tmp_path, monkeypatch):
    with socket.socket() as another:
        another.bind(("127.0.0.1", 0))
        another.listen()
        taken, look = another.getsockname()[1], jupyter.free_port
        result = iter([taken])
        monkeypatch.setattr(jupyter, "free_port",
                            lambda wanted, ip="127.0.0.1": next(result, None) or look(wanted, ip))
        server = jupyter.Jupyter(tmp_path, {}, None)
        try:
            assert server.port == taken
            server.wait_until_ready()
            assert server.port != taken and f":{server.port}/" in server.address
        finally:
            server.stop()
