package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
)

const (
	// Quarters is the number of parts of a batch. The size is measured after each part.
	Quarters = 4
	// restWithin bounds the time until an idle agent has released memory.
	restWithin = 15 * time.Second
	// heldNoise is the difference of held memory that does not count as growth: some
	// buffers happen to be larger.
	heldNoise = 0.5 // MB
	// rssNoise is the difference of resident memory that does not count as growth: pages
	// of the heap are partly used, and pages of the executable are read again.
	rssNoise = 2.0 // MB
)

// Size holds the quantities of an agent that could grow with the number of commands. They
// are measured at rest.
type Size struct {
	After int `json:"after"` // commands of the batch so far
	// HeldMB is the live heap that the agent's latest garbage collection found.
	HeldMB     float64 `json:"held_mb"`
	RSSMB      float64 `json:"rss_mb"`
	Goroutines int     `json:"goroutines"`
	Files      int     `json:"files"`   // open descriptors of the agent
	Cgroups    int     `json:"cgroups"` // on this host, for tasks of any agent
	Folders    int     `json:"folders"` // below the data folder
	StoreBytes int64   `json:"store_bytes"`
	Children   int     `json:"children"` // supervisors, and children not yet waited for
}

// grown names the quantities that are larger after the last quarter of a batch than after
// half of it.
//
// Memory under load says nothing about growth. It varies by more than a tenth with the
// garbage collector. Pages of the executable come back for a minute after the agent
// released them. At rest the agent has collected garbage and released memory, so all
// remaining memory but some kB is in use. Resident memory is compared, too, because it
// shows growth outside the heap.
func grown(sizes []Size) []string {
	out := []string{}
	half, end := sizes[Quarters/2-1], sizes[Quarters-1]
	for _, c := range []struct {
		what                string
		half, end, tolerate float64
	}{
		{"MB held", half.HeldMB, end.HeldMB, heldNoise},
		{"MB resident", half.RSSMB, end.RSSMB, rssNoise},
		{"goroutines", float64(half.Goroutines), float64(end.Goroutines), 5},
		{"files", float64(half.Files), float64(end.Files), 5},
		{"control groups", float64(half.Cgroups), float64(end.Cgroups), 1},
		{"folders", float64(half.Folders), float64(end.Folders), 0},
		{"children", float64(half.Children), float64(end.Children), 1},
		// The store grows by whole pages, so its noise is larger.
		{"bytes of the store", float64(half.StoreBytes), float64(end.StoreBytes), float64(half.StoreBytes)},
	} {
		if c.end > c.half+c.tolerate {
			out = append(out, fmt.Sprintf("%s, from %g to %g", c.what, c.half, c.end))
		}
	}
	return out
}

// size waits until the agent has removed the ended tasks and is at rest. Then size
// measures the agent.
func (n *agentRun) size(ctx context.Context) (Size, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, restWithin, fmt.Errorf("the agent was not at rest within %s of a batch", restWithin))
	defer cancel()
	var s Size
	for {
		entries, err := os.ReadDir(filepath.Join(n.data(), "allocs"))
		if err != nil {
			return s, err
		}
		if len(entries) <= n.o.Tasks {
			break
		}
		if err := report.Pause(ctx, report.PollEvery); err != nil {
			return s, fmt.Errorf("%d allocations are left of %d: %w", len(entries), n.o.Tasks, err)
		}
	}
	pid := n.cmd.Process.Pid
	m, err := n.rested(ctx)
	if err != nil {
		return s, err
	}
	s.HeldMB, s.Goroutines = report.Round(m[heldMetric]/1e6, 3), int(m[goroutinesMetric])
	var errs [4]error
	s.RSSMB, errs[0] = report.Memory(pid, "status", "VmRSS:")
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	s.Files, errs[1] = len(fds), err
	kids, err := report.ChildrenOf(pid)
	s.Children, errs[2] = len(kids), err
	for _, parent := range []string{"/sys/fs/cgroup/memory/nusa", "/sys/fs/cgroup/nusa"} {
		if entries, err := os.ReadDir(parent); err == nil {
			for _, e := range entries {
				if e.IsDir() {
					s.Cgroups++
				}
			}
			break
		}
	}
	errs[3] = s.stored(n.data())
	return s, errors.Join(errs[:]...)
}

// stored counts the folders below an agent's data folder, and notes the size of its store.
func (s *Size) stored(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir():
			s.Folders++
		case d.Name() == "agent.db":
			if fi, err := d.Info(); err == nil {
				s.StoreBytes = fi.Size()
			}
		}
		return nil
	})
}

// The metrics that are read from the agent.
const (
	goroutinesMetric = "go_goroutines"
	heldMetric       = "go_gc_heap_live_bytes"
	forcedMetric     = "go_gc_cycles_forced_gc_cycles_total"
)

// rested waits until the agent has released memory, and returns the agent's metrics. An
// agent releases memory by a forced garbage collection when it comes to rest. rested
// therefore first runs a short command, after which the agent comes to rest once more.
func (n *agentRun) rested(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, restWithin, fmt.Errorf("the agent released no memory within %s of its latest order", restWithin))
	defer cancel()
	n.rests++
	if err := n.runOne(ctx, fmt.Sprintf("rest-%06d", n.rests)); err != nil {
		return nil, err
	}
	before, err := n.metrics(ctx)
	if err != nil {
		return nil, err
	}
	for last := before; ; {
		if err := report.Pause(ctx, 20*report.PollEvery); err != nil {
			return nil, err
		}
		m, err := n.metrics(ctx)
		// The agent collects several times. The pages are released some milliseconds
		// later.
		if err != nil || m[forcedMetric] > before[forcedMetric] && m[forcedMetric] == last[forcedMetric] {
			return m, err
		}
		last = m
	}
}

// metrics reads the agent's metrics that are named above.
func (n *agentRun) metrics(ctx context.Context) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Close = true // an open connection would count as a file and two goroutines
	// A compressed response would leave most of a MB in a pool of the agent. The pool
	// outlives a garbage collection or two, so it would sometimes count as held memory.
	req.Header.Set("Accept-Encoding", "identity")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	out := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case goroutinesMetric, heldMetric, forcedMetric:
			if out[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, fmt.Errorf("the agent's metric %s: %w", name, err)
			}
		}
	}
	if len(out) < 3 {
		return nil, errors.Join(fmt.Errorf("the agent's metrics miss one of %s, %s, %s", goroutinesMetric, heldMetric, forcedMetric), lines.Err())
	}
	return out, nil
}
