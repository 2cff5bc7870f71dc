package agent

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxAnswer is how much of an HTTP answer is read, in bytes.
	maxAnswer = 64 << 10
	// maxSaid is how much is kept of what a body or a command says.
	maxSaid = 512
)

// reach is how an agent gets to the ports of its tasks.
type reach struct {
	dial func(ctx context.Context, addr string) (net.Conn, error)
	// elsewhere is the host whose ports those of a driver's tasks are, where it
	// is not this one: that of an engine which is reached over the network.
	elsewhere map[string]string
	// own is this node's address for others; "" = not known.
	own func() string
	// drivers run commands.
	drivers map[string]driver.Driver
}

// to connects to a host port of a driver's task: over the loopback interface,
// or for a task that does not listen there at the node's own address.
func (n reach) to(ctx context.Context, driver string, port int) (net.Conn, error) {
	host := cmp.Or(n.elsewhere[driver], "127.0.0.1")
	conn, err := n.dial(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || n.elsewhere[driver] != "" || n.own() == "" {
		return conn, err
	}
	if conn, ownErr := n.dial(ctx, net.JoinHostPort(n.own(), strconv.Itoa(port))); ownErr == nil {
		return conn, nil
	}
	return nil, err
}

// readCheck makes a task's check, nil for none. Its words are expanded.
func (o *order) readCheck(t *nusav1.Task, vars map[string]string, n reach) (*check, error) {
	k := t.GetCheck()
	if k == nil {
		return nil, nil
	}
	if o.alloc.Batch {
		return nil, errors.New("check: a batch job has none")
	}
	out := &check{Policy: policyOf(k)}
	port := func(label string) (int, error) {
		for _, p := range o.ports {
			if p.Label == label {
				return p.Host, nil
			}
		}
		return 0, fmt.Errorf("check: the group has no port %q", label)
	}
	switch kind := k.GetKind().(type) {
	case *nusav1.Check_Http:
		p, err := port(kind.Http.GetPort())
		if err != nil {
			return nil, err
		}
		path := cmp.Or(kind.Http.GetPath(), "/")
		req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(p)+path, nil)
		if err != nil {
			return nil, fmt.Errorf("check.http.path: %w", err)
		}
		req.Close = true
		req.Header.Set("User-Agent", "nusa-check")
		out.What = fmt.Sprintf("http :%d%s", p, path)
		out.probe = func(ctx context.Context, _ driver.ID) (string, error) {
			return n.getHTTP(ctx, t.GetDriver(), p, req)
		}
	case *nusav1.Check_Tcp:
		p, err := port(kind.Tcp.GetPort())
		if err != nil {
			return nil, err
		}
		out.What = fmt.Sprintf("tcp :%d", p)
		out.probe = func(ctx context.Context, _ driver.ID) (string, error) {
			conn, err := n.to(ctx, t.GetDriver(), p)
			if err != nil {
				return "", unanswered(err)
			}
			defer conn.Close()
			if t.GetDriver() != "process" {
				return "connected", answered(ctx, conn)
			}
			return "connected", nil
		}
	case *nusav1.Check_Command:
		words := make([]string, len(kind.Command.GetCommand()))
		for i, w := range kind.Command.GetCommand() {
			var err error
			if words[i], err = expand(w, vars); err != nil {
				return nil, fmt.Errorf("check.command[%d]: %w", i, err)
			}
		}
		if len(words) == 0 {
			return nil, errors.New("check.command: is empty")
		}
		out.command = true
		out.What = health.Clean("command " + strings.Join(words, " "))
		out.probe = func(ctx context.Context, id driver.ID) (string, error) {
			return n.command(ctx, t.GetDriver(), id, words)
		}
	default:
		return nil, errors.New("check: of a kind that this version does not know")
	}
	return out, nil
}

// staysOpen is how long a connection through an engine must stay open to count.
const staysOpen = 200 * time.Millisecond

// answered: what leads from an engine's host port to the task may accept first,
// then find nobody there and close again. Such a connection proves nothing.
func answered(ctx context.Context, conn net.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(staysOpen))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := conn.Read(make([]byte, 1))
	var late net.Error
	if n > 0 || errors.As(err, &late) && late.Timeout() {
		return nil // it speaks, or waits for us to
	}
	return errors.New("the connection was closed at once: nothing behind the port")
}

// policyOf holds the numbers of a check to what the agent counts with.
func policyOf(k *nusav1.Check) health.Policy {
	return health.Policy{
		Interval: within(minInterval, orDefault(k.GetInterval().AsDuration(), defaultCheckInterval), maxInterval),
		Timeout:  min(orDefault(k.GetTimeout().AsDuration(), defaultCheckTimeout), maxTimeout),
		Deadline: min(orDefault(k.GetHealthyDeadline().AsDuration(), defaultCheckDeadline), maxInterval),
		Failures: int(orDefault(k.GetFailures(), defaultCheckFailures)),
	}
}

// orDefault is for what an order leaves out, or has wrong.
func orDefault[T cmp.Ordered](v, otherwise T) T {
	var zero T
	if v > zero {
		return v
	}
	return otherwise
}

// getHTTP wants a 2xx answer. There is no client that follows redirects, keeps
// connections or reads a body that nobody wants: each check asks whether a new
// connection is served.
func (n reach) getHTTP(ctx context.Context, driver string, port int, req *http.Request) (string, error) {
	conn, err := n.to(ctx, driver, port)
	if err != nil {
		return "", unanswered(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := req.Write(conn); err != nil {
		return "", unanswered(err)
	}
	in := bufio.NewReader(io.LimitReader(conn, maxAnswer))
	for {
		resp, err := http.ReadResponse(in, req)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return "", errors.New("the connection was closed without an answer")
		case err != nil:
			return "", unanswered(err)
		case resp.StatusCode/100 == 1: // more is to come
			continue
		case resp.StatusCode/100 == 2:
			return fmt.Sprintf("status %d", resp.StatusCode), nil
		}
		said, _ := io.ReadAll(io.LimitReader(resp.Body, maxSaid))
		message := fmt.Sprintf("status %d", resp.StatusCode)
		if to := resp.Header.Get("Location"); resp.StatusCode/100 == 3 && to != "" {
			message += " to " + to
		} else if line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n"); line != "" {
			message += ": " + line
		}
		return "", errors.New(message)
	}
}

// command runs words in a task and wants the exit code 0.
func (n reach) command(ctx context.Context, name string, id driver.ID, words []string) (string, error) {
	drv := n.drivers[name]
	if drv == nil {
		return "", errors.New(noDriver(name))
	}
	var out tail
	end, err := drv.Exec(ctx, id, driver.Exec{Command: words, Stdout: &out, Stderr: &out})
	if err != nil {
		return "", unanswered(err)
	}
	message := fmt.Sprintf("exit code %d", end.Code)
	if said := strings.TrimSpace(out.String()); said != "" {
		message += ": " + said
	}
	if end.Code != 0 {
		return "", errors.New(message)
	}
	return message, nil
}

// tail keeps the last maxSaid bytes written to it, by several at a time.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-maxSaid):]...)
	t.kept = bytes.Clone(t.kept[max(0, len(t.kept)-maxSaid):])
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}

// unanswered says in few words why a check came to nothing: what is checked is
// said elsewhere.
func unanswered(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}
