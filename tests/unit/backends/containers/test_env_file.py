"""Variables of the host for a container."""

from seatrial.backends.containers.env_file import proxies_with_login, proxy_env
from seatrial.system.host import Host


def test_a_proxy_is_passed_on_in_both_cases():
    assert proxy_env(Host({"HTTPS_PROXY": "http://proxy:3128"})) == {
        "HTTPS_PROXY": "http://proxy:3128",
        "https_proxy": "http://proxy:3128",
    }


def test_a_proxy_with_a_login_is_a_secret_and_no_variable():
    environ = {"https_proxy": "http://user:password@proxy:3128", "NO_PROXY": "localhost"}
    assert proxies_with_login(Host(environ)) == ("https_proxy",)
    assert proxy_env(Host(environ)) == {"NO_PROXY": "localhost", "no_proxy": "localhost"}
