package dev

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/topology"
)

// pollInterval is the interval between two checks of the file. A changed file is read only
// after it has not changed for one interval, so that a half-written file is not read.
const pollInterval = time.Second

// maxListedChanges bounds the changed round trips that a message names.
const maxListedChanges = 3

// wanFile watches the file of round trips. A change of the file changes the emulated
// network of a running federation: round trips, and cuts.
type wanFile struct {
	path    string
	regions []string
	table   *topology.Table // the table that is in use
	read    os.FileInfo     // the file when it was last read, or nil if the file is not watched
	seen    os.FileInfo     // the file at the last check
}

// followed returns the watch of the file that --wan names. Only a regular file is watched.
// Call followed before the file is read, so that no change is missed.
func followed(name string) *wanFile {
	w := &wanFile{path: name}
	if name == wanAzure || name == wanNone {
		return w
	}
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
		w.read, w.seen = info, info
	}
	return w
}

// poll returns the new table if the file has changed, and a message. A file with errors
// changes nothing.
func (w *wanFile) poll() (table *topology.Table, text string) {
	info, err := os.Stat(w.path)
	if err != nil {
		return nil, "" // an editor may be replacing the file
	}
	unchanged := same(info, w.seen)
	w.seen = info
	if !unchanged || same(info, w.read) {
		return nil, ""
	}
	w.read = info
	table, err = Table(w.path)
	if err == nil {
		err = w.checkRegions(table)
	}
	if err != nil {
		return nil, fmt.Sprintf("%v; the round trips stay as they were", err)
	}
	changes := changedPairs(w.table, table, w.regions)
	w.table = table
	if len(changes) == 0 {
		return table, ""
	}
	more := ""
	if n := len(changes) - maxListedChanges; n > 0 {
		changes, more = changes[:maxListedChanges], fmt.Sprintf(" and %d more", n)
	}
	return table, fmt.Sprintf("--wan: %s has changed: %s%s", w.path, strings.Join(changes, ", "), more)
}

func (w *wanFile) checkRegions(table *topology.Table) error {
	for _, r := range w.regions {
		if !table.Has(r) {
			return fmt.Errorf("--wan: %s: region %s is missing in the first row; the region keeps running", w.path, r)
		}
	}
	return nil
}

// start watches the file until ctx ends or the caller calls end. end waits until the watch
// has ended. tell may be nil.
func (w *wanFile) start(ctx context.Context, set func(*topology.Table), tell func(string)) (end func()) {
	if tell == nil {
		tell = func(string) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { w.follow(ctx, set, tell) })
	return func() {
		cancel()
		following.Wait()
	}
}

func (w *wanFile) follow(ctx context.Context, set func(*topology.Table), tell func(string)) {
	for range wait.Ticks(ctx, pollInterval) {
		table, text := w.poll()
		if table != nil {
			set(table)
		}
		if text != "" {
			tell(text)
		}
	}
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// changedPairs describes each directed pair whose round trip has changed, in the order of
// the regions.
func changedPairs(old, now *topology.Table, regions []string) []string {
	var out []string
	for _, from := range regions {
		for _, to := range regions {
			if before, after := rttText(old, from, to), rttText(now, from, to); from != to && before != after {
				out = append(out, fmt.Sprintf("%s → %s %s → %s", from, to, before, after))
			}
		}
	}
	return out
}

func rttText(t *topology.Table, from, to string) string {
	if d, ok := t.RTT(from, to); ok {
		return job.FormatDuration(d)
	}
	return "cut"
}
