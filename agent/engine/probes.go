package engine

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
)

const (
	// maxResponse bounds the part of an HTTP response that the agent reads, in bytes.
	maxResponse = 64 << 10
	// maxOutput bounds the part of a body or of a command's output that the agent uses, in
	// bytes.
	maxOutput = 512
	// staysOpen is how long a connection through a container engine must stay open before
	// the check passes.
	staysOpen = 200 * time.Millisecond
)

// Reach says how the agent reaches the ports of its tasks.
type Reach struct {
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// RemoteHosts maps a driver to the host with the ports of its tasks, if the driver's
	// engine is on another machine.
	RemoteHosts map[string]string
	// OwnAddress returns the address at which other machines reach this node, or "" if it
	// is unknown.
	OwnAddress func() string
	// Drivers maps a name to the driver that runs commands in tasks.
	Drivers map[string]driver.Driver
}

// dial connects to a host port of a driver's task over the loopback interface. If that is
// refused, dial tries the node's own address, because the task may not listen on the
// loopback interface.
func (n Reach) dial(ctx context.Context, driver string, port int) (net.Conn, error) {
	host := cmp.Or(n.RemoteHosts[driver], "127.0.0.1")
	conn, err := n.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || n.RemoteHosts[driver] != "" || n.OwnAddress() == "" {
		return conn, err
	}
	if conn, ownErr := n.Dial(ctx, net.JoinHostPort(n.OwnAddress(), strconv.Itoa(port))); ownErr == nil {
		return conn, nil
	}
	return nil, err
}

// connect checks that a port accepts a connection.
func (n Reach) connect(ctx context.Context, driver string, port int) (string, error) {
	conn, err := n.dial(ctx, driver, port)
	if err != nil {
		return "", shortError(err)
	}
	defer conn.Close()
	if driver != "process" {
		return "connected", staysConnected(ctx, conn)
	}
	return "connected", nil
}

// staysConnected checks that the other end does not close a connection at once. The proxy
// between an engine's host port and the task accepts connections even if no program listens
// in the task. So only a connection that stays open proves that a program listens.
func staysConnected(ctx context.Context, conn net.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(staysOpen))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := conn.Read(make([]byte, 1))
	var late net.Error
	if n > 0 || errors.As(err, &late) && late.Timeout() {
		return nil // the server sends, or waits for the client
	}
	return errors.New("the connection was closed at once: no program listens behind the port")
}

// getHTTP checks that a request gets a 2xx response. It uses no http.Client, because a
// client would follow redirects, keep connections and read the whole body. A check must
// test whether the task serves a new connection.
func (n Reach) getHTTP(ctx context.Context, driver string, port int, req *http.Request) (string, error) {
	conn, err := n.dial(ctx, driver, port)
	if err != nil {
		return "", shortError(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := req.Write(conn); err != nil {
		return "", shortError(err)
	}
	in := bufio.NewReader(io.LimitReader(conn, maxResponse))
	for {
		resp, err := http.ReadResponse(in, req)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return "", errors.New("the connection was closed without a response")
		case err != nil:
			return "", shortError(err)
		case resp.StatusCode/100 == 1: // an interim response; the final one follows
			continue
		case resp.StatusCode/100 == 2:
			return fmt.Sprintf("status %d", resp.StatusCode), nil
		}
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
		message := fmt.Sprintf("status %d", resp.StatusCode)
		if to := resp.Header.Get("Location"); resp.StatusCode/100 == 3 && to != "" {
			message += " to " + to
		} else if line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n"); line != "" {
			message += ": " + line
		}
		return "", errors.New(message)
	}
}

// command checks that a command in a task ends with exit code 0.
func (n Reach) command(ctx context.Context, name string, id driver.ID, command []string) (string, error) {
	drv := n.Drivers[name]
	if drv == nil {
		return "", errors.New(noDriver(name))
	}
	var out tail
	end, err := drv.Exec(ctx, id, driver.Exec{Command: command, Stdout: &out, Stderr: &out})
	if err != nil {
		return "", shortError(err)
	}
	message := fmt.Sprintf("exit code %d", end.Code)
	if text := strings.TrimSpace(out.String()); text != "" {
		message += ": " + text
	}
	if end.Code != 0 {
		return "", errors.New(message)
	}
	return message, nil
}

// tail holds the last maxOutput bytes that were written. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p[max(0, len(p)-maxOutput):]...)
	t.last = bytes.Clone(t.last[max(0, len(t.last)-maxOutput):])
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.last)
}

// shortError returns the error of the operating system alone, because the message of the
// check already names the target.
func shortError(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}
