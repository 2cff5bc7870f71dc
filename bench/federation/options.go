package federation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/internal/topo"
)

// Bounds of Options. A federation takes no more than maxRegions. Beyond the other bounds the load generator limits the
// figures.
const (
	maxRegions     = topo.MaxRegions
	maxJobs        = 1_000_000
	maxConcurrency = 4_096
	maxRate        = 100_000
)

// Options of a measurement.
type Options struct {
	// Regions is the number of emulated regions, Jobs the number of jobs.
	Regions, Jobs int
	// Concurrency is the number of callers, or of streams.
	Concurrency int
	// Stream submits by SubmitMany instead of unary calls.
	Stream bool
	// Keys gives each job an idempotency key.
	Keys bool
	// Rate is the number of submits a second, at fixed times. At 0 each caller submits its
	// next job when the previous one is stored.
	Rate float64
	// Against is the address of a running global server; empty = start one.
	Against string
	// Idle is how long the server is measured without submits; 0 = not at all.
	Idle time.Duration
	// Etcd is how long etcd alone is measured, once before and once after the server; 0 =
	// not at all, and neither is how long etcd alone takes to open the data of the server.
	Etcd time.Duration
	// Parts is how many jobs the bare parts get after the server (package parts), with the
	// other options; 0 = they are not measured.
	Parts int
	// Rounds is how often everything is measured, each time with new processes; 0 means once. With several
	// rounds the result has the medians.
	Rounds int
	// Stored is the number of jobs that are stored, and run, before the same load is measured
	// once more; 0 = it is not.
	Stored int
	// Timeout bounds the time until all regions are connected, and the time from the first
	// submit until all slots are accepted.
	Timeout time.Duration
	// History is the number of jobs that have ended and that are added to the store
	// before the restart.
	History int
	// Dir is the parent of the temporary folder.
	Dir string
	// Profile is the folder for the server's CPU and heap profiles; empty = none. With Stored they are
	// those of the second measurement, and with Rounds those of the last round.
	Profile string
	// Executable serves `global …`, `bench federation-etcd …` and `bench federation-parts …`;
	// default: this program.
	Executable string
	// Progress shows a line of text; "" ends the line. It may be nil.
	Progress func(string)
	// Say prints a line of text that stays on the screen. It may be nil.
	Say func(string)
}

// Validate returns an error that names the flag of the first invalid option.
func (o *Options) Validate() error {
	for _, n := range []struct {
		flag            string
		value, from, to int
	}{
		{"--regions", o.Regions, 1, maxRegions}, {"--jobs", o.Jobs, 1, maxJobs}, {"--concurrency", o.Concurrency, 1, maxConcurrency},
	} {
		if n.value < n.from || n.value > n.to {
			return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
		}
	}
	if !(o.Rate >= 0 && o.Rate <= maxRate) { // also refuses NaN
		return fmt.Errorf("--rate: %g is not 0..%d", o.Rate, maxRate)
	}
	switch {
	case o.History < 0 || o.History > maxJobs:
		return fmt.Errorf("--history: %d is not 0..%d", o.History, maxJobs)
	case o.History > 0 && o.Against != "":
		return errors.New("--history: needs a server on this machine, so it does not go with --against")
	case o.Stored < 0 || o.Stored > maxJobs:
		return fmt.Errorf("--stored: %d is not 0..%d", o.Stored, maxJobs)
	case o.Stored > 0 && o.Against != "":
		return errors.New("--stored: needs a server on this machine, so it does not go with --against")
	case o.Parts < 0 || o.Parts > maxJobs:
		return fmt.Errorf("--parts: %d is not 0..%d", o.Parts, maxJobs)
	case o.Parts > 0 && o.Against != "":
		return errors.New("--parts: needs a server on this machine, so it does not go with --against")
	case o.Rounds < 0 || o.Rounds > maxRounds:
		return fmt.Errorf("--rounds: %d is not 0..%d", o.Rounds, maxRounds)
	case o.Rounds > 1 && o.Against != "":
		return errors.New("--rounds: needs a server on this machine, so it does not go with --against")
	case o.Rate > 0 && o.Stream:
		return errors.New("--rate: is for unary calls, so it does not go with --stream")
	case o.Idle < 0:
		return fmt.Errorf("--idle: %s is less than 0", o.Idle)
	case o.Etcd < 0:
		return fmt.Errorf("--etcd: %s is less than 0", o.Etcd)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout: %s is not more than 0", o.Timeout)
	}
	if o.Against != "" {
		if _, _, err := net.SplitHostPort(o.Against); err != nil {
			return fmt.Errorf("--against: %q is not host:port", o.Against)
		}
		if o.Profile != "" {
			return errors.New("--profile: needs a server on this machine, so it does not go with --against")
		}
	}
	if s, err := os.Stat(o.Dir); err != nil || !s.IsDir() {
		return fmt.Errorf("--dir: %q is not a folder", o.Dir)
	}
	return nil
}

func (o *Options) load() load.Options {
	return load.Options{Rate: o.Rate, Stream: o.Stream, Keys: o.Keys, Concurrency: o.Concurrency}
}

func (o *Options) progress(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

func (o *Options) say(format string, args ...any) {
	if o.Say != nil {
		o.Say(fmt.Sprintf(format, args...))
	}
}
