"""A file with the name of an installed package."""


class Mine: ...
