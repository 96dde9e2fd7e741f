"""A page as a browser would see it, for tests."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "hr", "input", "source"}


class Outline(HTMLParser):
    """What a browser would see: text, tags, and everything that leads elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [value for name, value in attrs if name in {"src", "href", "srcset", "data", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]
