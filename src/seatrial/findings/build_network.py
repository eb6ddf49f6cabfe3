"""Failures of image builds to get something: names, proxies, certificates, indexes, git, Debian's servers."""

from seatrial.findings.known import Known

_PIP = "https://pip.pypa.io/en/stable/topics/"
#: What the Hugging Face hub answers to a script; libraries.py knows it.
_HUB = r"4\d\d Client Error: [^:]{0,40} for url: https://([\w.-]+\.)?(huggingface|hf)\.co\S*"
_APT = "https://manpages.debian.org/bookworm/apt/apt-secure.8.en.html"

BUILD_NETWORK = (
    Known(
        id="proxy-login",
        title="The proxy refuses the build: it wants a login",
        symptoms=(
            "407 Proxy Authentication Required",
            "Tunnel connection failed: 407",
            "CONNECT tunnel failed, response 407",
            "Received HTTP code 407 from proxy",
            "407  Proxy Authentication Required",
        ),
        cause="The proxy's address was given without a name and password, or with wrong ones",
        fix="export HTTPS_PROXY=http://USER:PASSWORD@PROXY:PORT HTTP_PROXY=http://USER:PASSWORD@PROXY:PORT",
        sources=("https://docs.docker.com/engine/cli/proxy/",),
    ),
    Known(
        id="clock-wrong",
        title="The clock of this machine is wrong: signatures and certificates are not valid at its time",
        symptoms=(
            "is not valid yet (invalid for another",
            "certificate is not yet valid",
            "certificate has expired or is not yet valid",
            "is expired (invalid since",
        ),
        cause="The machine, or the engine's virtual machine, was asleep or has no time server; or the mirror is old",
        fix="date && sudo timedatectl set-ntp true   # Docker Desktop: restart it",
        sources=(_APT,),
    ),
    Known(
        id="git-certificate",
        title="git does not trust the certificate of {host} inside the build",
        symptoms=(
            "unable to access 'https://{host}/…SSL certificate problem",
            "unable to access 'https://{host}/…server certificate verification failed",
            "SSL certificate problem: unable to get local issuer certificate",
            "server certificate verification failed. CAfile",
        ),
        cause="It is often a proxy that signs with its own certificate authority",
        fix='in seatrial.toml: [image] ca_bundle = "/path/to/company-ca.pem"',
        sources=("https://git-scm.com/docs/git-config#Documentation/git-config.txt-httpsslCAInfo",),
    ),
    Known(
        id="host-not-resolved",
        title="The build cannot find the server {host}",
        symptoms=(
            "Could not resolve host: {host}",
            "Could not resolve hostname {host}:",
            "Could not resolve '{host}'",
            "unable to resolve host address '{host}'",
            "Failed to resolve '{host}'",
        ),
        cause="No name server is reachable from inside the build: often a VPN or proxy that only the host knows",
        fix='in seatrial.toml: [image] build_network = "host"',
        sources=("https://docs.docker.com/engine/daemon/troubleshoot/#dns-resolver-issues",),
        # pip's own copy of urllib3 is another one: this one is a script's
        healthy=r"<urllib3\.[^>]{0,200}>: Failed to resolve",
    ),
    Known(
        id="git-login",
        title="A git repository needs a login, or does not exist",
        symptoms=(
            "Permission denied (publickey)",
            "could not read Username for 'https://",
            "fatal: Authentication failed for",
            "Host key verification failed",
            "remote: Repository not found",
        ),
        cause="A build has none of your keys and passwords; servers give the same answer for a wrong name",
        fix='git ls-remote URL   # then install it from a wheel: [image] find_links = "wheels"',
        sources=(_PIP + "vcs-support/",),
    ),
    Known(
        id="git-ref-missing",
        title="The git repository has no branch, tag or commit {ref}",
        symptoms=(
            "Remote branch {ref} not found in upstream",
            "pathspec '{ref}' did not match any file",
            "Did not find branch or tag '{ref}', assuming revision or ref",
            "couldn't find remote ref {ref}",
        ),
        cause="It was renamed or removed, or the name has a typing error",
        fix="git ls-remote URL",
        sources=(_PIP + "vcs-support/",),
    ),
    Known(
        id="index-denied",
        title="The package index denied access",
        symptoms=(
            "403 Client Error: Forbidden for url: {url}",
            "401 Client Error: Unauthorized for url: {url}",
            "HTTP error 403 while getting",
            "HTTP error 401 while getting",
            "ERROR: 403 Client Error",
            "401 Error, Credentials not correct for",
        ),
        cause="It needs a name and password, these are wrong, or a company's proxy blocks it",
        fix='in seatrial.toml: [image] index_url = "https://USER:TOKEN@HOST/simple"   # kept out of the image',
        sources=(_PIP + "authentication/",),
        healthy=_HUB,
    ),
    Known(
        id="index-rate-limit",
        title="The package index refused temporarily: too many requests",
        symptoms=("429 Client Error: Too Many Requests", "HTTP error 429 while getting", "429 Too Many Requests"),
        cause="Many builds behind one address reached its limit",
        fix="sleep 300   # and build again; or index_url of a mirror",
        sources=("https://www.rfc-editor.org/rfc/rfc6585#section-4",),
        healthy=_HUB,
    ),
    Known(
        id="index-address-wrong",
        title="There is nothing at {url}",
        symptoms=(
            "404 Client Error: Not Found for url: {url}",
            "HTTP error 404 while getting {url}",
        ),
        cause="The index's address is wrong, or the file was removed from it",
        fix="curl -I {url}",
        sources=(_PIP + "configuration/",),
        healthy=_HUB,
    ),
    Known(
        id="download-timeout",
        title="A download into the build stopped: the server did not answer in time",
        symptoms=(
            "after connection broken by 'ReadTimeoutError…: /simple/",
            "after connection broken by 'ReadTimeoutError…: /packages/",
            "ReadTimeoutError: HTTPSConnectionPool(host='",
            "ReadTimeoutError: HTTPConnectionPool(host='",
            "The read operation timed out",
            "Connection timed out after",
            "Failed to connect to {host} port …: Connection timed out",
            "early EOF",
            "RPC failed; curl",
            "IncompleteRead(",
        ),
        cause="The connection is slow or unsteady, or a proxy cuts large files",
        fix="seatrial build …   # again: finished steps are kept; or index_url of a mirror",
        sources=(_PIP + "configuration/",),
    ),
    Known(
        id="debian-release-gone",
        title="Debian's or Ubuntu's servers have no packages for this base image's release any more",
        symptoms=("does not have a Release file", "no longer has a Release file"),
        cause="The release reached its end, and its packages moved to an archive",
        fix='in seatrial.toml: [image] base = "python:3.11-slim-bookworm"',
        sources=("https://www.debian.org/releases/",),
    ),
    Known(
        id="debian-lists-old",
        title="A Debian package is not on the server any more",
        symptoms=("404  Not Found [IP:", "404 Not Found [IP:", "E: Failed to fetch {url}  404"),
        cause="The package lists in the image are older than the server: apt-get update ran in another, cached step",
        fix="{engine} builder prune   # or in a Dockerfile: RUN apt-get update && apt-get install -y …",
        sources=("https://docs.docker.com/build/building/best-practices/#apt-get",),
    ),
    Known(
        id="debian-signature",
        title="apt does not accept the signature of a package source",
        symptoms=(
            "The following signatures couldn't be verified because the public key is not available",
            "The following signatures were invalid: ",
            "At least one invalid signature was encountered",
            "is not signed.",
        ),
        cause="Its key is missing in the base image or has expired; or libseccomp of the host is too old for the base",
        fix="{engine} pull {base}   # a newer base image has the new keys",
        sources=(_APT,),
    ),
)
