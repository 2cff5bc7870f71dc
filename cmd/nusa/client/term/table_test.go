package term_test

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

const (
	noCPU  = "not enough cpu: needs 64 cpu, the largest node, e1, has 4"
	noDisk = "not enough disk: needs 64 GiB, the largest node, e1, has 4"
)

func messages(width int, all ...string) string {
	t := term.NewTable("JOB", "#MESSAGE", ">N")
	for _, m := range all {
		t.Row("default/a", m, "7")
	}
	var b strings.Builder
	t.Write(&term.Screen{Writer: &b, Width: width})
	return b.String()
}

func TestMessagesAreFootnotes(t *testing.T) {
	for _, c := range []struct {
		name  string
		width int
		all   []string
		want  string
	}{
		{"one in a pipe stays", 0, []string{noCPU, "short"}, `
JOB        MESSAGE                                                    N
default/a  not enough cpu: needs 64 cpu, the largest node, e1, has 4  7
default/a  short                                                      7
`},
		{"one that makes a wide line in a pipe", 0, []string{noCPU + "; " + noDisk, "short"}, `
JOB        MESSAGE  N
default/a  [1]      7
default/a  short    7

[1] not enough cpu: needs 64 cpu, the largest node, e1, has 4; not enough disk: needs 64 GiB, the largest node, e1, has 4
`},
		{"repeated ones are written once", 0, []string{noCPU, noDisk, noCPU, "short", "short"}, `
JOB        MESSAGE                                                     N
default/a  [1]                                                         7
default/a  not enough disk: needs 64 GiB, the largest node, e1, has 4  7
default/a  [1]                                                         7
default/a  short                                                       7
default/a  short                                                       7

[1] not enough cpu: needs 64 cpu, the largest node, e1, has 4
`},
		{"those that do not fit are wrapped below", 50, []string{noCPU, noDisk, "short"}, `
JOB        MESSAGE  N
default/a  [1]      7
default/a  [2]      7
default/a  short    7

[1] not enough cpu: needs 64 cpu, the largest
    node, e1, has 4
[2] not enough disk: needs 64 GiB, the largest
    node, e1, has 4
`},
		{"those that fit stay", 80, []string{noCPU}, `
JOB        MESSAGE                                                    N
default/a  not enough cpu: needs 64 cpu, the largest node, e1, has 4  7
`},
	} {
		if got := "\n" + messages(c.width, c.all...); got != c.want {
			t.Errorf("%s: got:%s\nwant:%s", c.name, got, c.want)
		}
	}
}

// TestEverythingFits80Columns: no line is wider than the terminal, for any messages.
func TestEverythingFits80Columns(t *testing.T) {
	for n := 1; n < 300; n += 7 {
		message := strings.TrimSpace(strings.Repeat("wordy ", n))
		for _, line := range strings.Split(messages(80, message, message, "x"), "\n") {
			if len([]rune(line)) >= 80 {
				t.Fatalf("a line of %d columns: %s", len([]rune(line)), line)
			}
		}
	}
}

// TestNarrowTablesLoseColumns: columns are removed in the given order, and only as many as
// needed.
func TestNarrowTablesLoseColumns(t *testing.T) {
	for width, want := range map[int]string{
		0: "NAME STATE MASTER PLACE NOTE", 37: "NAME STATE MASTER PLACE NOTE", 36: "NAME STATE MASTER NOTE", 29: "NAME STATE NOTE", 5: "NAME STATE NOTE",
	} {
		table := term.NewTable("NAME", "STATE", "MASTER", "PLACE", "#NOTE")
		table.Row("tokyo", "lost", "tokyo-1", "Tokyo", strings.Repeat("long ", 20))
		table.Narrow(width, "PLACE", "MASTER")
		var b strings.Builder
		table.Write(&term.Screen{Writer: &b})
		head, _, _ := strings.Cut(b.String(), "\n")
		if got := strings.Join(strings.Fields(head), " "); got != want {
			t.Errorf("width %d: %s, want %s", width, got, want)
		}
	}
}
