package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// profileRate is how many bytes a process allocates for one sample in its heap profile: Go's default.
const profileRate = 512 << 10

// profiledCommand returns a hidden command that runs another command of nusa in this
// process. It writes a CPU profile of the time from SIGUSR1, or from the start, to SIGUSR2.
// After that it writes a heap profile and a report about the process' memory.
func profiledCommand(execute func(ctx context.Context, args []string) int) *cobra.Command {
	var start bool
	cmd := &cobra.Command{
		Use: "profiled PREFIX -- COMMAND...", Hidden: true, Args: cobra.MinimumNArgs(2),
		Short: "Run a command and write PREFIX.cpu, .memory, .goroutines and .heap from SIGUSR1 to SIGUSR2",
		RunE: func(cmd *cobra.Command, args []string) error {
			runtime.MemProfileRate = profileRate
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
			defer signal.Stop(signals)
			var p *report.Profile
			if start {
				var err error
				p, err = report.StartProfile(args[0])
				if err != nil {
					return err
				}
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			ended := make(chan int, 1)
			go func() { ended <- execute(ctx, args[1:]) }()
			var profiles []error
			for {
				select {
				case s := <-signals:
					var err error
					if s == syscall.SIGUSR1 && p == nil {
						p, err = report.StartProfile(args[0])
					} else if s == syscall.SIGUSR2 && p != nil {
						err, p = p.Stop(), nil
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
	cmd.Flags().BoolVar(&start, "start", false, "begin the CPU profile at the start")
	return cmd
}
