package dev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// TestChangedWANFileIsRead: a changed file is read once it has stopped changing. A file
// with errors changes nothing.
func TestChangedWANFileIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rtt.csv")
	clock := time.Now()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		clock = clock.Add(time.Second) // the file gets a different time, even if the file system's clock is coarse
		if err := os.Chtimes(path, clock, clock); err != nil {
			t.Fatal(err)
		}
	}
	const head = "from,jakarta,tokyo\n"
	write(head + "jakarta,,80.5\ntokyo,81,\n")
	w := followed(path)
	table, err := Table(path)
	if err != nil || w.read == nil {
		t.Fatalf("%v, follows %v", err, w.read)
	}
	w.table, w.regions = table, []string{"jakarta", "tokyo"}
	silent := func(when string) {
		t.Helper()
		if table, text := w.poll(); table != nil || text != "" {
			t.Errorf("%s: %v %q", when, table, text)
		}
	}
	reports := func(want string, changes bool) {
		t.Helper()
		silent("while it may still be written")
		table, text := w.poll()
		if !strings.Contains(text, want) || (table != nil) != changes {
			t.Errorf("%v %q, want %q", table, text, want)
		}
		silent("what was reported")
	}
	silent("unchanged")

	write(head + "jakarta,,400\ntokyo,81,\n")
	reports("rtt.csv has changed: jakarta → tokyo 80.5ms → 400ms", true)
	if d, _ := w.table.RTT("jakarta", "tokyo"); d != 400*time.Millisecond {
		t.Errorf("jakarta to tokyo: %s", d)
	}
	write(head + "jakarta,,-\n")
	reports("jakarta → tokyo 400ms → cut, tokyo → jakarta 81ms → cut", true)
	write(head + "jakarta,,x\n")
	reports(`line 2: jakarta to tokyo: "x" is not a number of milliseconds; the round trips stay as they were`, false)
	write("from,jakarta\njakarta,\n")
	reports("region tokyo is missing in the first row; the region keeps running; the round trips stay as they were", false)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	silent("gone")
	write(head + "jakarta,,20\ntokyo,30,\n")
	reports("jakarta → tokyo cut → 20ms, tokyo → jakarta cut → 30ms", true)
}

func TestOnlyFilesAreFollowed(t *testing.T) {
	for _, name := range []string{wanAzure, wanNone, "no/such", t.TempDir()} {
		if w := followed(name); w.read != nil {
			t.Errorf("%s is followed", name)
		}
	}
}

func TestManyChangesAreCounted(t *testing.T) {
	read := func(ms string) *topology.Table {
		t.Helper()
		table, err := topology.ParseTable(strings.NewReader(strings.ReplaceAll("from,a,b,c\na,,M,M\nb,M,,M\nc,M,M,\n", "M", ms)))
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	if got := changedPairs(read("5"), read("6"), []string{"a", "b", "c"}); len(got) != 6 || got[0] != "a → b 5ms → 6ms" {
		t.Errorf("%q", got)
	}
	if got := changedPairs(read("5"), read("5"), []string{"a", "b", "c"}); len(got) != 0 {
		t.Errorf("nothing changed: %q", got)
	}
}
