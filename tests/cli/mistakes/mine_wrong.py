"""A class that is no algorithm, no net, no task and no data module."""


class Mine: ...
