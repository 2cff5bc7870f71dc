package workload

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// firstWait is how long a process waits for its first identity.
const firstWait = 30 * time.Second

// mostPause bounds the pause between two attempts to reach the Workload API.
const mostPause = 30 * time.Second

// Config says whose identity this process gets, and from where.
type Config struct {
	// Socket is the address of the Workload API, for example unix:///run/spire/agent.sock.
	Socket string
	// ID is the identity without its federation, which is the trust domain of the Workload API.
	ID identity.ID
	// Dir is the folder for the identity.
	Dir string
	// Wait bounds how long Ensure waits. Default: 30 s.
	Wait time.Duration
	Log  *slog.Logger
}

// CheckSocket returns an error if a text is not the address of a Workload API on this machine. Over
// a network the key would be readable.
func CheckSocket(address string) error {
	err := workloadapi.ValidateAddress(address)
	if err == nil && strings.HasPrefix(address, "unix:///") {
		return nil
	}
	return fmt.Errorf("%q is not the address of a Unix socket: write it as unix:///run/spire/agent.sock", address)
}

// Ensure waits until the folder has an identity of this process. It does not wait if the folder has
// a valid one from an earlier start: Run replaces that.
func Ensure(ctx context.Context, c Config) error {
	if source, err := trust.Open(trust.Options{Dir: c.Dir}); err == nil {
		id := source.ID()
		id.Federation = ""
		if id == c.ID {
			return nil
		}
	}
	if c.Wait <= 0 {
		c.Wait = firstWait
	}
	c.Log.Info("waiting for an identity of the Workload API", "socket", c.Socket, "at_most", c.Wait)
	// A deadline of the call would hide the reason of the last attempt.
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(c.Wait, cancel).Stop()
	f := follower{config: c, given: cancel}
	f.run(within)
	switch {
	case f.written:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case f.reason == nil:
		f.reason = fmt.Errorf("%w: look whether the SPIRE agent runs", ErrSilent)
	}
	return fmt.Errorf("%s gave no identity of %s within %s: %w", c.Socket, c.ID.Describe(), c.Wait, f.reason)
}

// Run writes each new identity into the folder until ctx ends. While the Workload API does not answer,
// the last identity stays there.
func Run(ctx context.Context, c Config) error {
	f := follower{config: c, given: func() {}}
	f.run(ctx)
	return nil
}

// follower writes the identities of one process. All its methods run in the goroutine of run.
type follower struct {
	config Config
	// given is called after each write.
	given   func()
	written bool
	// reason says why the last attempt gave no identity.
	reason error
	ended  func() bool
}

// run follows the Workload API until ctx ends.
func (f *follower) run(ctx context.Context) {
	f.ended = func() bool { return ctx.Err() != nil }
	connect := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	connect.Backoff.MaxDelay = mostPause
	for {
		// The call repeats failed attempts with pauses of 1 to 30 s. Few answers end it.
		err := workloadapi.WatchX509Context(ctx, f, workloadapi.WithAddr(f.config.Socket),
			workloadapi.WithDialOptions(grpc.WithConnectParams(connect)))
		f.OnX509ContextWatchError(err)
		if !wait.For(ctx, mostPause) {
			return
		}
	}
}

// OnX509ContextUpdate writes the identity of an answer.
func (f *follower) OnX509ContextUpdate(answer *workloadapi.X509Context) {
	if f.ended() {
		return
	}
	creds, err := choose(answer, f.config.ID, time.Now())
	if err == nil {
		err = trust.Write(f.config.Dir, creds)
	}
	if err != nil {
		f.failed(err)
		return
	}
	if f.reason != nil {
		f.config.Log.Info("the Workload API gives this process an identity", "socket", f.config.Socket)
	}
	f.reason, f.written = nil, true
	f.given()
}

// OnX509ContextWatchError notes that an attempt failed.
func (f *follower) OnX509ContextWatchError(err error) {
	if err == nil || f.ended() {
		return
	}
	f.failed(explain(err, f.config.ID))
}

// failed notes why there is no new identity. One line of the log is enough for each kind of reason.
func (f *follower) failed(err error) {
	if !sameReason(f.reason, err) {
		f.config.Log.Warn("no identity from the Workload API: the last one, if any, stays in use", "socket", f.config.Socket, "error", err)
	}
	f.reason = err
}
