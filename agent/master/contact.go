package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
)

const (
	// firstWarning is how long an agent may reach no server before it warns. A common start
	// of all servers and agents takes less time.
	firstWarning = 4 * time.Second
	// nextWarning is the pause between two warnings.
	nextWarning = 30 * time.Second
)

// startMore is the advice of a warning if a server has answered, but knows no master.
const startMore = "are enough of the region's servers started to elect a master (all that --bootstrap-expect counts)?"

// whatToCheck is the advice of a warning if no server has answered.
const whatToCheck = "are the region's servers started (all that --bootstrap-expect counts), and with --bind if they are on other machines? " +
	"do the agent's --servers name its gRPC address? does a firewall block the port?"

// needsIdentity is the advice of a warning if a program has accepted the connection of an agent and
// then closed it.
const needsIdentity = "no Nusa server listens there, or it has an identity, and this agent needs --identity or --join-token-file, too (nusa token create)"

// wrongIdentity is the advice of a warning if the connection could not be encrypted.
const wrongIdentity = "has one of the two certificates expired, or is it of another federation, region or name? " +
	"the server's log has its reason; nusa ca issue renews an identity"

// contact logs warnings while the agent reaches no server that knows a master.
type contact struct {
	log     *slog.Logger
	changed notify.Signal // greeted has become zero, or is no longer zero

	mu sync.Mutex
	// greeted counts the sessions with servers that know a master.
	greeted int
	// since is the time at which greeted became zero.
	since  time.Time
	warned bool
	// tried holds the addresses that the agent has tried since greeted became zero.
	tried map[string]attempt
}

// attempt is the latest attempt to reach an address.
type attempt struct {
	// problem is the error of the latest attempt that ended. It is "" while no attempt has
	// ended.
	problem string
	// dialFailed says that problem is the error of the dial, which is more precise than the
	// session's error.
	dialFailed bool
	// answered says that the server has answered.
	answered bool
	// identity is the advice about identities. It is "" if the error is not about them.
	identity string
}

func newContact(log *slog.Logger) *contact {
	return &contact{log: log, since: time.Now(), tried: map[string]attempt{}}
}

// try records that a session with an address begins.
func (c *contact) try(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried[addr] = attempt{problem: c.tried[addr].problem, identity: c.tried[addr].identity}
}

// dialFailed records the error of a dial.
func (c *contact) dialFailed(addr string, err error) {
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		text = "no response to the connection request"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried[addr] = attempt{problem: text, dialFailed: true}
}

// greet records a session with a server that knows a master.
func (c *contact) greet(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.greeted++
	if c.greeted > 1 {
		return
	}
	if c.warned {
		c.log.Info("the region is reached", "server", addr, "after", time.Since(c.since).Round(time.Second).String())
	}
	c.warned, c.tried = false, map[string]attempt{}
	c.changed.Notify()
}

// end records that a session has ended.
func (c *contact) end(addr string, greeted bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !greeted {
		if c.greeted == 0 && !c.tried[addr].dialFailed {
			c.tried[addr] = attempt{problem: causeText(err), answered: answered(err), identity: identityAdvice(err)}
		}
		return
	}
	c.greeted--
	if c.greeted == 0 {
		c.since = time.Now()
		c.tried = map[string]attempt{addr: {problem: causeText(err)}}
		c.changed.Notify()
	}
}

// run logs the warnings until ctx ends.
func (c *contact) run(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := c.changed.C()
		c.mu.Lock()
		reached, since := c.greeted > 0, c.since
		c.mu.Unlock()
		if reached {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		c.warnUntil(ctx, changed, firstWarning-time.Since(since))
	}
	return nil
}

// warnUntil warns after the time first and repeats the warning until the contact changes.
func (c *contact) warnUntil(ctx context.Context, changed <-chan struct{}, first time.Duration) {
	t := time.NewTimer(first)
	defer t.Stop()
	for {
		select {
		case <-changed:
			return
		case <-ctx.Done():
			return
		case <-t.C:
			c.warn()
			t.Reset(nextWarning)
		}
	}
}

func (c *contact) warn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greeted > 0 {
		return
	}
	c.warned = true
	var tried []string
	check := whatToCheck
	for _, addr := range slices.Sorted(maps.Keys(c.tried)) {
		text := c.tried[addr].problem
		if text == "" {
			text = "no response yet"
		}
		switch {
		case c.tried[addr].answered:
			check = startMore
		case c.tried[addr].identity != "" && check != startMore:
			check = c.tried[addr].identity
		}
		tried = append(tried, fmt.Sprintf("%s: %s", addr, text))
	}
	c.log.Warn("the region cannot be reached: running tasks continue, new orders do not arrive",
		"for", time.Since(c.since).Round(time.Second).String(), "tried", strings.Join(tried, "; "), "check", check)
}

// identityAdvice returns the advice about identities for the error that ended a session. It returns
// "" for other errors.
func identityAdvice(err error) string {
	switch {
	case rpcerr.HandshakeFailed(err):
		return wrongIdentity
	case rpcerr.NoPreface(err):
		return needsIdentity
	}
	return ""
}

// answered reports whether a server has answered, by the error that ended its session.
func answered(err error) bool {
	if errors.Is(err, errNoMaster) {
		return true
	}
	var st interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &st) {
		return false
	}
	switch st.GRPCStatus().Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unknown: // this agent gave up, or saw no status
		return false
	}
	return rpcerr.TransportFailure(err) == rpcerr.NoFailure
}

// causeText returns the message of the gRPC status in an error, or the whole error.
func causeText(err error) string {
	if err == nil {
		return "the session ended"
	}
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		return st.GRPCStatus().Message()
	}
	return err.Error()
}
