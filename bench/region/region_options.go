package region

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"time"

	"github.com/nusa-scheduler/nusa/bench/load"
)

// Bounds of Options. Beyond these bounds the load generator or the limits of a region
// determine the figures.
const (
	maxNodes       = 20_000
	maxInstances   = 2_000_000
	maxJobs        = 1_000_000
	maxPerNode     = 5_000 // the mean number of instances of a node
	maxConcurrency = 4_096
	maxRate        = 100_000
)

// Options of a measurement.
type Options struct {
	// Nodes is the number of simulated agents; 0 only with Against.
	Nodes int
	// AgentsPerConnection is how many agents share one connection. A real agent has its
	// own.
	AgentsPerConnection int
	// Jobs is the number of jobs, Count the number of instances of each job.
	Jobs, Count int
	// Rate is the number of submits a second, at fixed times. At 0 each caller submits its
	// next job when the previous one is stored.
	Rate float64
	// Concurrency is the number of callers, or of streams. Connections is the number of
	// connections that they share.
	Concurrency, Connections int
	// Servers is the number of regional servers: 1 or 3.
	Servers int
	// Stream submits by SubmitMany instead of unary calls.
	Stream bool
	// NoAck makes the agents report nothing.
	NoAck bool
	// Warmup is the number of jobs that are placed before the measured jobs.
	Warmup int
	// Timeout bounds the time from the first submit until all instances are acknowledged.
	Timeout time.Duration
	// Idle is how long the servers are measured without submits; 0 = not at all.
	Idle time.Duration
	// Restart kills the master at the end and measures the interruption.
	Restart bool
	// FastRaft starts the servers with --fast-raft, which suits round trips far below a
	// millisecond.
	FastRaft bool
	// Against is the address of a running region's server; empty = start servers.
	Against string
	// Dir is the parent of the servers' temporary folder.
	Dir string
	// TLS gives each server, agent and caller an identity, so all connections are encrypted.
	TLS bool
	// Profile is the folder for the servers' CPU and heap profiles; empty = none.
	Profile string
	// Executable serves `regional …`; default: this program.
	Executable string
	// emptyFor is how long empty calls are measured; 0 = defaultEmpty.
	emptyFor time.Duration
	// Progress shows a line of text; "" ends the line. It may be nil.
	Progress func(string)
	// Say prints a line of text that stays on the screen. It may be nil.
	Say func(string)
}

// Validate returns an error that names the flag of the first invalid option.
func (o *Options) Validate() error {
	if o.Against != "" {
		if _, _, err := net.SplitHostPort(o.Against); err != nil {
			return fmt.Errorf("--against: %q is not host:port", o.Against)
		}
		switch {
		case o.Restart:
			return errors.New("--restart: kills servers, so it is not for a region that runs already (--against)")
		case o.NoAck:
			return errors.New("--no-ack: the jobs could not be stopped again, so it does not go with --against")
		case o.Idle > 0:
			return errors.New("--idle: needs servers on this machine, so it does not go with --against")
		case o.Profile != "":
			return errors.New("--profile: needs servers on this machine, so it does not go with --against")
		case o.TLS:
			return errors.New("--tls: needs servers on this machine, so it does not go with --against")
		}
	}
	least := 1
	if o.Against != "" {
		least = 0
	}
	for _, n := range []struct {
		flag            string
		value, from, to int
	}{
		{"--nodes", o.Nodes, least, maxNodes},
		{"--jobs", o.Jobs, 1, maxJobs},
		{"--count", o.Count, 1, 1_000_000},
		{"--concurrency", o.Concurrency, 1, maxConcurrency},
		{"--connections", o.Connections, 1, 64},
		{"--warmup", o.Warmup, 0, 100_000},
		{"--agents-per-connection", o.AgentsPerConnection, 1, maxAgentsPerConn},
	} {
		if n.value < n.from || n.value > n.to {
			return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
		}
	}
	switch {
	case o.Servers != 1 && o.Servers != 3:
		return fmt.Errorf("--servers: %d is not 1 or 3", o.Servers)
	case o.Jobs*o.Count > maxInstances:
		return fmt.Errorf("--jobs, --count: %d instances, at most %d", o.Jobs*o.Count, maxInstances)
	case o.Nodes > 0 && o.Jobs*o.Count > maxPerNode*o.Nodes:
		return fmt.Errorf("--nodes: %d instances on %d nodes are more than %d each", o.Jobs*o.Count, o.Nodes, maxPerNode)
	case math.IsNaN(o.Rate) || o.Rate < 0 || o.Rate > maxRate:
		return fmt.Errorf("--rate: %g is not 0..%d", o.Rate, maxRate)
	case o.Rate > 0 && o.Stream:
		return errors.New("--rate: is for unary calls, so it does not go with --stream")
	case o.TLS && o.AgentsPerConnection > 1:
		return errors.New("--tls: each agent has its own identity and connection, so it does not go with --agents-per-connection")
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout: %s is not more than 0", o.Timeout)
	case o.Idle < 0:
		return fmt.Errorf("--idle: %s is less than 0", o.Idle)
	}
	if o.Against == "" {
		if info, err := os.Stat(o.Dir); err != nil || !info.IsDir() {
			return fmt.Errorf("--dir: %q is not a folder", o.Dir)
		}
	}
	return nil
}

func (o *Options) load() load.Options {
	return load.Options{Rate: o.Rate, Stream: o.Stream, Concurrency: o.Concurrency}
}

func (o *Options) instances() int { return o.Jobs * o.Count }

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
