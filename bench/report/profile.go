package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
)

// Profile is a CPU profile in progress.
type Profile struct {
	prefix string
	cpu    *os.File
}

func StartProfile(prefix string) (*Profile, error) {
	f, err := os.Create(prefix + ".cpu")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Profile{prefix: prefix, cpu: f}, nil
}

// Stop ends the profile. PREFIX.heap appears last, when the other files are complete.
func (p *Profile) Stop() error {
	pprof.StopCPUProfile()
	if err := p.cpu.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(p.prefix+".memory", memoryClasses(), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(p.prefix+".goroutines", goroutines(), 0o600); err != nil {
		return err
	}
	unfinished := p.prefix + ".heap.tmp"
	f, err := os.Create(unfinished)
	if err != nil {
		return err
	}
	runtime.GC() // collect garbage first, so that the heap profile shows only memory in use
	if err := errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close()); err != nil {
		return err
	}
	return os.Rename(unfinished, p.prefix+".heap")
}

// goroutines lists the goroutines of this process: each place once, with the number of those that wait there.
func goroutines() []byte {
	var out bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&out, 1) // a buffer takes all
	return out.Bytes()
}

// memoryClasses lists how this process uses its memory: one use a line, with its bytes.
// The list includes memory that no heap profile shows, for example stacks, which are large
// with thousands of connections.
func memoryClasses() []byte {
	var samples []metrics.Sample
	for _, d := range metrics.All() {
		if d.Kind == metrics.KindUint64 && (strings.HasPrefix(d.Name, "/memory/classes/") || d.Name == "/sched/goroutines:goroutines") {
			samples = append(samples, metrics.Sample{Name: d.Name})
		}
	}
	metrics.Read(samples)
	var out []byte
	for _, s := range samples {
		out = fmt.Appendf(out, "%-48s %12d\n", s.Name, s.Value.Uint64())
	}
	return out
}
