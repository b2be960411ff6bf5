"""Which addresses and refs are given to git, and how those that are not are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.agents.repositories import (
    REF_LIMIT_BYTES,
    URL_LIMIT_CHARACTERS,
    cache_name,
    is_commit,
    transport_of,
    validate_ref,
)
from longshore.core.tasks.failures import ErrorCategory, failure_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "url",
    [
        "https://{}/owner/name",
        "https://{}:8443/owner/name",
        "ssh://git@{}:2222/owner/name",
        "git@{}:owner/name.git",
    ],
)
def test_only_repositories_of_the_allowed_hosts_are_accepted(url: str) -> None:
    hosts = ("git.example.com", "github.com")

    assert transport_of(url.format("GitHub.com"), hosts=hosts) in ("https", "ssh")
    for other in ("evil.example.com", "github.com.example.com", "xgithub.com", "com"):
        assert transport_of(url.format(other)) in ("https", "ssh")
        with pytest.raises(ValueError, match=r"repository_hosts has git.example.com, github.com"):
            transport_of(url.format(other), hosts=hosts)
    assert transport_of("/srv/a.git", local=True, hosts=hosts) == "file"


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("https://github.com/owner/name", "https"),
        ("https://GitHub.com/owner/name.git", "https"),
        ("https://git.example.com:8443/a/b%20c.git", "https"),
        ("https://[2001:db8::1]/a", "https"),
        ("ssh://git@example.com/a/b.git", "ssh"),
        ("ssh://git@example.com:2222/~me/b.git", "ssh"),
        ("git@github.com:owner/name.git", "ssh"),
        ("deploy_1.x@host:/srv/a.git", "ssh"),
    ],
)
def test_an_address_in_a_supported_form_is_accepted(url: str, transport: str) -> None:
    assert transport_of(url) == transport


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "1 to 2,048 characters"),
        ("https://h/" + "a" * URL_LIMIT_CHARACTERS, "1 to 2,048 characters"),
        ("--upload-pack=touch x", "a space"),
        ("--upload-pack=touch", "no address"),
        ("-oProxyCommand=x@host:path", "no address"),
        ("ssh://-oProxyCommand=x/path", "no address"),
        ("ssh://git@-oProxyCommand=x/path", "no address"),
        ("git@-oProxyCommand=x:path", "no address"),
        ("git@host:-path", "no address"),
        ("git@host::path", "no address"),
        ("git@host:", "no address"),
        ("host:path", "no address"),
        ("ssh://host/path", "no address"),
        ("https://host", "no address"),
        ("https://host/", "no address"),
        ("https://host./a", "no address"),
        ("https://host:0/a", "no address"),
        ("https://host:65536/a", "no address"),
        ("ext::sh%20-c%20id", "ext: is no transport"),
        ("fd::7", "fd: is no transport"),
        ("HTTPS://host/a", "HTTPS: is no transport"),
        ("ftp://host/a", "ftp: is no transport"),
        ("http://host/a", "neither encrypted"),
        ("http://127.0.0.1/a", "neither encrypted"),
        ("git://host/a", "neither encrypted"),
        ("file:///srv/a", "worker's own disk"),
        ("/srv/a", "worker's own disk"),
        ("../a", "worker's own disk"),
        ("~/a", "worker's own disk"),
        ("https://host/a b", "a space"),
        ("https://host/a\n", "control character"),
        ("https://host/a\0", "control character"),
        ("https://host/a%0aHost:x", "control character"),
        ("https://host/a%00", "control character"),
        ("https://host/a%7F", "control character"),
        ("https://host/a%zz", "control character"),
        ("https://host/ä", "beyond ASCII"),
        ("https://host\\@other/a", "must not carry"),
        ("https://host/a\\b", "backslash"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_other_addresses_are_refused_with_the_accepted_forms(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"address|transport|encrypted|disk") as caught:
        transport_of(url)

    assert message in str(caught.value)
    assert len(str(caught.value)) < 500
    assert failure_of(caught.value).category is ErrorCategory.VALIDATION


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter22@github.com/a/b",
        "https://hunter22@github.com/a/b",
        "http://me:hunter22@localhost/a",
        "ssh://git:hunter22@github.com/a",
        "ftp://me:hunter22@host/a",
        "https://github.com/a/b?token=hunter22",
        "https://github.com/a/b#hunter22",
        "ext::ssh://me:hunter22@host/a?",
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_a_secret_in_an_address_is_refused_and_not_repeated(url: str, local: bool) -> None:
    with pytest.raises(ValueError, match="ssh agent of the worker") as caught:
        transport_of(url, local=local)

    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("/srv/git/a.git", "file"),
        ("/srv/my git/ä#1.git", "file"),
        ("file:///srv/git/a.git", "file"),
        ("http://127.0.0.1:3000/a", "http"),
        ("http://localhost/a", "http"),
        ("http://[::1]:80/a", "http"),
    ],
)
def test_a_repository_of_this_machine_is_accepted_where_allowed(url: str, transport: str) -> None:
    assert transport_of(url, local=True) == transport


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c id",
        "fd::7",
        "http://example.com/a",
        "http://127.0.0.1.example.com/a",
        "file://host/a",
        "srv/a",
        "./a",
        "/srv/a\nb",
        "--help",
        "git://localhost/a",
    ],
)
def test_no_program_and_no_other_machine_is_ever_local(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected|write such"):
        transport_of(url, local=True)


@given(st.text(alphabet=st.sampled_from("https:/@-.[]gitext?#%0a\\ \n"), max_size=30))
def test_an_accepted_address_is_never_an_option_or_another_transport(url: str) -> None:
    try:
        transport = transport_of(url)
    except ValueError:
        return
    assert transport in ("https", "ssh")
    assert not url.startswith("-")
    assert url.isprintable()
    assert "::" not in url.partition("]")[0].partition("[")[0]


@pytest.mark.parametrize(
    "ref",
    ["main", "feature/a-b", "v1.0", "ü", "a@b", "a{b}", "refs/pull/12/head", "HEAD", "a" * 240],
)
def test_a_ref_that_git_could_have_is_taken_as_it_is(ref: str) -> None:
    assert validate_ref(ref) == ref
    assert not is_commit(ref)


def test_a_commit_is_named_by_its_full_id_in_upper_or_lower_case() -> None:
    assert validate_ref(COMMIT.upper()) == COMMIT
    assert is_commit(COMMIT)
    assert not is_commit(COMMIT[:39])
    assert not is_commit(COMMIT + "0")


@pytest.mark.parametrize(
    "ref",
    [
        *("", "-x", "--upload-pack=x", ".a", "a/.b", "/a", "a/", "a//b", "a.", "a..b", "a.lock"),
        *("a.lock/b", "@", "a@{1}", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "a\nb"),
        *("a\0", "a\x7f", "\ud800", "a" * (REF_LIMIT_BYTES + 1), "ü" * (REF_LIMIT_BYTES // 2 + 1)),
    ],
    ids=lambda ref: repr(ref)[:30],
)
def test_a_ref_that_git_would_not_have_is_refused(ref: str) -> None:
    with pytest.raises(ValueError, match="branch") as caught:
        validate_ref(ref)

    assert failure_of(caught.value).category is ErrorCategory.VALIDATION


def test_each_address_has_a_folder_of_its_own_with_a_plain_name() -> None:
    urls = ["https://h/a", "https://h/a.git", "https://h/A", "https://h/a/", "git@h:a", "/a"]

    names = [cache_name(url) for url in urls]

    assert len(set(names)) == len(urls)
    assert all(name.isalnum() and len(name) == 64 for name in names)
    assert names == [cache_name(url) for url in urls]
