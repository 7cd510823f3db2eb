"""What the tests of gmblock trace share."""
import errno
import json
import os

import support

MIB = 1 << 20


class TraceCase(support.Case):
    def disk(self, name="disk", size=4 * MIB, content=None):
        """A file with random bytes that can be read directly, or the reason to skip."""
        path = self.make_file(name, os.urandom(size) if content is None else content)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.skipTest("no direct I/O in the folder for temporary files")
        return path

    def trace(self, *arguments):
        code, output, errors = self.run_gmblock("trace", "--json", *arguments)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)
