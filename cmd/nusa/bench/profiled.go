package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// profiledCommand runs another command of nusa in this process and writes
// profiles of it: the CPU's from SIGUSR1 to SIGUSR2, and the heap's and what the
// process' memory is used for then.
func profiledCommand(execute func(ctx context.Context, args []string) int) *cobra.Command {
	return &cobra.Command{
		Use: "profiled PREFIX -- COMMAND...", Hidden: true, Args: cobra.MinimumNArgs(2),
		Short: "Run a command and write PREFIX.cpu, PREFIX.memory and PREFIX.heap from SIGUSR1 to SIGUSR2",
		RunE: func(cmd *cobra.Command, args []string) error {
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
			defer signal.Stop(signals)
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			ended := make(chan int, 1)
			go func() { ended <- execute(ctx, args[1:]) }()
			var profiles []error
			var p *profile
			for {
				select {
				case s := <-signals:
					var err error
					if s == syscall.SIGUSR1 && p == nil {
						p, err = startProfile(args[0])
					} else if s == syscall.SIGUSR2 && p != nil {
						err, p = p.end(), nil
					}
					profiles = append(profiles, err)
				case code := <-ended:
					if code != 0 {
						profiles = append(profiles, fmt.Errorf("%s ended with exit code %d", args[1], code))
					}
					return errors.Join(profiles...)
				}
			}
		},
	}
}

// profile is one that is being written.
type profile struct {
	prefix string
	cpu    *os.File
}

func startProfile(prefix string) (*profile, error) {
	f, err := os.Create(prefix + ".cpu")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &profile{prefix: prefix, cpu: f}, nil
}

func (p *profile) end() error {
	pprof.StopCPUProfile()
	if err := p.cpu.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(p.prefix+".memory", memoryClasses(), 0o600); err != nil {
		return err
	}
	f, err := os.Create(p.prefix + ".heap")
	if err != nil {
		return err
	}
	runtime.GC() // what is in use, not what waits to be collected
	return errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
}

// memoryClasses says what the process' memory is used for, a kind a line with its
// bytes: those that no heap profile shows, such as the stacks of goroutines, are
// much where there are thousands of connections.
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
