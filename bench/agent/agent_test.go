package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent"
	"github.com/nusa-scheduler/nusa/bench/report"
)

// leaky is the name of this program when its agent leaks leakBytes for every task.
const (
	leaky     = "leaky"
	leakBytes = 64 << 10
)

// serveAgent serves `nusa agent` with the flags that a measurement uses.
func serveAgent(args []string) error {
	var servers string
	cfg := agent.Config{ReleaseMemory: true, Logger: slog.New(leak{slog.DiscardHandler})}
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.StringVar(&cfg.Region, "region", "", "")
	f.StringVar(&cfg.Name, "name", "", "")
	f.StringVar(&servers, "servers", "", "")
	f.StringVar(&cfg.HTTPAddr, "http-addr", "", "")
	f.StringVar(&cfg.DataDir, "data-dir", "", "")
	f.StringVar(&cfg.DockerHost, "docker-host", "", "")
	f.StringVar(&cfg.Incus, "incus", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	cfg.Servers = []string{servers}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return agent.Run(ctx, cfg)
}

// leak is a log handler that leaks memory for every ended task.
type leak struct{ slog.Handler }

var leaked [][]byte

func (l leak) Enabled(context.Context, slog.Level) bool { return true }

func (l leak) Handle(_ context.Context, r slog.Record) error {
	if filepath.Base(os.Args[0]) == leaky && r.Message == "task ended" {
		leaked = append(leaked, make([]byte, leakBytes)) // only the engine's goroutine logs this message
	}
	return nil
}

// TestAgentGrowth: the measurement finds the leak of an agent that leaks memory, and no
// leak in an ordinary agent.
func TestAgentGrowth(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sound", leaky} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Tasks: 1, Idle: time.Millisecond, Batch: 80, Window: 8, Timeout: 2 * time.Minute, Dir: t.TempDir(), Executable: filepath.Join(t.TempDir(), name)}
			if err := os.Symlink(self, o.Executable); err != nil {
				t.Fatal(err)
			}
			r, err := Measure(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			grows := slices.ContainsFunc(r.Grown, func(s string) bool { return strings.HasPrefix(s, "MB held") })
			if grows != (name == leaky) || len(r.Sizes) != Quarters {
				t.Errorf("grown: %q of %+v", r.Grown, r.Sizes)
			}
			if r.Idle == nil || r.Rested == nil {
				t.Errorf("idle %v, after the batch %v", r.Idle, r.Rested)
			}
			empty(t, o.Dir)
		})
	}
}

func TestGrown(t *testing.T) {
	base := Size{HeldMB: 6, RSSMB: 30, Goroutines: 130, Files: 217, Cgroups: 126, Folders: 604, StoreBytes: 1 << 18, Children: 101}
	for name, c := range map[string]struct {
		change func(s *Size)
		want   string
	}{
		"the same":     {func(*Size) {}, ""},
		"noise":        {func(s *Size) { s.HeldMB += 0.49; s.RSSMB += 1.9; s.Goroutines += 5; s.StoreBytes *= 2 }, ""},
		"less":         {func(s *Size) { *s = Size{} }, ""},
		"held":         {func(s *Size) { s.HeldMB += 0.75 }, "MB held, from 6 to 6.75"},
		"resident":     {func(s *Size) { s.RSSMB += 2.5 }, "MB resident, from 30 to 32.5"},
		"goroutines":   {func(s *Size) { s.Goroutines += 6 }, "goroutines, from 130 to 136"},
		"files":        {func(s *Size) { s.Files += 6 }, "files, from 217 to 223"},
		"cgroups":      {func(s *Size) { s.Cgroups += 2 }, "control groups, from 126 to 128"},
		"folders":      {func(s *Size) { s.Folders++ }, "folders, from 604 to 605"},
		"children":     {func(s *Size) { s.Children += 2 }, "children, from 101 to 103"},
		"the store":    {func(s *Size) { s.StoreBytes = 1 << 20 }, "bytes of the store, from 262144 to 1.048576e+06"},
		"two of these": {func(s *Size) { s.Files += 9; s.Folders++ }, "files, from 217 to 226; folders, from 604 to 605"},
	} {
		end := base
		c.change(&end)
		got := grown([]Size{{}, base, base, end}) // the first size is taken while the agent warms up
		if strings.Join(got, "; ") != c.want || got == nil {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAgentOutput(t *testing.T) {
	idle := &Idle{Seconds: 6, CPUCores: 0.0017, RSSMB: 27.6, SupervisorRSSMB: 3.83, SupervisorPSSMB: 0.89}
	r := &Result{Tasks: 100, StartMS: report.Quantiles{P50: 3.55, P90: 5, P99: 8.01, Max: 9}, Idle: idle, Batch: 4000, Window: 32, BatchSeconds: 12.5, BatchPerS: 320,
		AgentCPUMSPerTask: 1.82, TaskCPUMS: 3.11, Rested: idle, Filesystem: "ext4", FSync: true, DiskSyncMS: &report.Quantiles{P50: 0.1, P90: 0.2, P99: 0.3, Max: 0.4}}
	for i := range Quarters {
		r.Sizes = append(r.Sizes, Size{After: 1000 * (i + 1), HeldMB: 6, RSSMB: 30 + float64(i), Goroutines: 131, StoreBytes: 1 << 18})
	}
	for _, want := range []string{"  grown           nothing from 2000 to 4000\n", "  grown           MB held, from 6 to 9\n"} {
		var got bytes.Buffer
		if err := r.Table(&got); err != nil || !strings.Contains(got.String(), want) {
			t.Errorf("%v, want %q in\n%s", err, want, got.String())
		}
		r.Grown = []string{fmt.Sprintf("MB held, from %d to %d", 6, 9)}
	}
	data, err := json.Marshal(r)
	var keys map[string]any
	if err := json.Unmarshal(data, &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"start_ms", "idle", "batch_per_s", "agent_cpu_ms_per_task", "sizes", "grown", "rested"} {
		if _, found := keys[k]; err != nil || !found {
			t.Errorf("the JSON lacks %q, which scripts rely on: %v", k, err)
		}
	}
}

// empty fails the test unless a folder is empty.
func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("%s is left behind", left[0].Name())
	}
}
