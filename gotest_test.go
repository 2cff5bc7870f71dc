package nusa_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// failing is the output of go test with failed tests. Before use, the first character of each line
// is removed: it is = for the lines that must be repeated at the end.
const failing = ` ok  	module/quiet	0.1s
=--- FAIL: TestEngines (60.00s)
=    local_test.go:1: one
=        and more of it
 2026/01/02 a stray line
=    local_test.go:2: two
=    local_test.go:3: three
     local_test.go:4: four
=    local_test.go:5: five
=    local_test.go:6: six
=    local_test.go:7: seven
=    local_test.go:8: eight
=    local_test.go:9: nine
=    --- FAIL: TestEngines/features (0.00s)
=        features_test.go:10: all run: not within 2m0s
     local_test.go:11: log of global.log:
         time=1 level=INFO msg=nothing
         features_test.go:12: of a log
 --- SKIP: TestOther (0.00s)
     other_test.go:13: skipped: no incus
 FAIL
=FAIL	module/deploy/local	61.2s
=# module/broken
=broken/a.go:7:2: undefined: b
=FAIL	module/broken [build failed]
=WARNING: DATA RACE
=Read at 0x00c000000000 by goroutine 7:
 ok  	module/last	0.1s
`

// TestGotest: after a failure the output ends with the failures, and the exit code is that of go test.
func TestGotest(t *testing.T) {
	for _, program := range []string{"bash", "awk"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("skipped: ", err)
		}
	}
	var printed, again strings.Builder
	var packages []string
	for line := range strings.Lines(failing) {
		printed.WriteString(line[1:])
		switch {
		case strings.HasPrefix(line, "=FAIL\t"):
			packages = append(packages, line[1:])
		case line[0] == '=':
			again.WriteString(line[1:])
		case strings.Contains(line, "four"):
			again.WriteString("    … 1 more messages …\n")
		}
	}
	dir := t.TempDir()
	output, fake := filepath.Join(dir, "output"), filepath.Join(dir, "go")
	script := "#!/bin/sh\n[ \"$*\" = 'test -x ./...' ] || exit 9\ncat '" + output + "'\n! grep -q FAIL '" + output + "' || exit 3\n"
	if err := errors.Join(os.WriteFile(output, []byte(printed.String()), 0o600), os.WriteFile(fake, []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	run := func() (string, int) {
		cmd := exec.Command("bash", ".ci/gotest", "-x", "./...")
		cmd.Env = append(os.Environ(), "GO="+fake)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	want := printed.String() + "\n== what failed, in short; the whole is above ==\n" + again.String() + strings.Join(packages, "")
	if out, code := run(); out != want || code != 3 {
		t.Errorf("exit code %d, output:\n%s\nwant:\n%s", code, out, want)
	}
	if err := os.WriteFile(output, []byte("ok  	module\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := run(); out != "ok  	module\n" || code != 0 {
		t.Errorf("where nothing fails: exit code %d, output:\n%s", code, out)
	}
}
