"""What an engine says that does not get an image from a registry."""

from seatrial.findings.known import Known

REGISTRY = (
    Known(
        id="image-name-unknown",
        title="There is no image {reference}",
        symptoms=(
            "manifest for {reference} not found",
            "failed to resolve source metadata for …: {reference}: not found",
            "manifest unknown",
            "name unknown: ",
        ),
        cause="The registry has no such name or tag",
        fix="{engine} manifest inspect {reference}",
        sources=("https://distribution.github.io/distribution/spec/api/#errors-2",),
    ),
    Known(
        id="registry-denied",
        title="The registry denied access to image {reference}",
        symptoms=(
            "pull access denied for {reference}",
            "failed to resolve source metadata for {reference}: pull access denied",
            "pull access denied, repository does not exist",
            "/v2/…unauthorized: ",
            "from daemon: unauthorized: ",
            "reading manifest …unauthorized: ",
            "unauthorized: authentication required",
            "unauthorized: incorrect username or password",
            "unauthorized: access to the requested resource",
            "unexpected status…401 Unauthorized",
            "unexpected status…403 Forbidden",
            "access to the resource is denied",
        ),
        cause="It does not exist, or it needs a login: registries give the same answer for both",
        fix="{engine} login",
        sources=("https://docs.docker.com/reference/cli/docker/login/",),
    ),
    Known(
        id="registry-rate-limit",
        title="The registry refused image {reference} temporarily",
        symptoms=("toomanyrequests", "pull rate limit"),
        cause="Its limit for anonymous pulls was reached",
        fix="{engine} login",
        sources=("https://docs.docker.com/docker-hub/usage/",),
    ),
    Known(
        id="registry-certificate",
        title="The registry's certificate is not trusted: image {reference} was not pulled",
        symptoms=("/v2/…x509: ", "/v2/…certificate signed by unknown authority"),
        cause="A proxy signs with a certificate authority that {Engine} does not trust",
        fix="ls /etc/docker/certs.d /etc/containers/certs.d",
        sources=("https://docs.docker.com/engine/security/certificates/",),
    ),
    Known(
        id="registry-unreachable",
        title="Image {reference} cannot be pulled: the registry cannot be reached",
        symptoms=(
            "/v2/…dial tcp",
            "/v2/…no such host",
            "/v2/…timeout",
            "/v2/…network is unreachable",
            "/v2/…connection refused",
            "pinging container registry",
        ),
        cause="There is no network, or a proxy that {Engine} is not configured for",
        fix="{engine} pull {reference}",
        sources=("https://docs.docker.com/engine/daemon/proxy/",),
    ),
    Known(
        id="registry-not-named",
        title="Podman does not know which registry {reference} is from",
        symptoms=('short-name "{reference}" did not resolve to an alias and no unqualified-search registries',),
        cause="No unqualified-search registry is set",
        fix="podman pull docker.io/{reference}",
        sources=("https://github.com/containers/image/blob/main/docs/containers-registries.conf.5.md",),
    ),
)
