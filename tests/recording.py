"""Programs that remember what they were called with, to be looked at after a run."""

from hmcl_jax.continual.programs import Programs


class RecordingPrograms(Programs):
    """Each call of a program, in `calls`: its name, the jitted function and the arguments."""

    def __init__(self, config):
        super().__init__(config)
        self.calls = []

    def _compile(self, name, one):
        program = super()._compile(name, one)

        def call(*arguments):
            self.calls.append((name, program, arguments))
            return program(*arguments)

        call._cache_size = program._cache_size
        return call
