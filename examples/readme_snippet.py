import longshore


@longshore.task(max_attempts=5)
def fetch(url: str) -> list[str]:
    return [f"{url}/page-{number}" for number in (1, 2, 3)]


@longshore.task
def count(sites: list[list[str]]) -> int:
    return sum(len(pages) for pages in sites)


if __name__ == "__main__":
    print(longshore.run(count.of([fetch.of(site) for site in ("a.example", "b.example")])))
