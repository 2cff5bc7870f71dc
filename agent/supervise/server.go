package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// request is one line of JSON on the run's socket. A connection carries one request.
type request struct {
	// Op is the operation. The reply to "wait" comes when the run has ended. "stop" asks
	// the run to end, and its reply comes when the run has ended. The reply to "renew"
	// comes at once. "watch" sends an empty line whenever the log has grown, and ends with
	// the run. The reply to "exec" comes when a further command has ended. If the caller
	// closes the connection earlier, the command is killed. "update" changes the limits.
	// "signal" sends the signal Signal to the command.
	Op       string        `json:"op"`
	Signal   int           `json:"signal,omitempty"`
	Grace    time.Duration `json:"grace,omitempty"`
	Deadline time.Duration `json:"deadline,omitempty"`
	// Number is the number of Deadline. The deadline with the greatest number counts.
	Number uint64 `json:"number,omitempty"`
	Limits Limits `json:"limits,omitzero"`
	// Argv is a further command. Its standard input, output and error are sent as open
	// descriptors. With TTY all three are one terminal, which becomes the controlling
	// terminal of the command.
	Argv []string `json:"argv,omitempty"`
	TTY  bool     `json:"tty,omitempty"`
}

// maxRequest bounds a request, in bytes. It allows a command of 64 KiB in which each byte
// is escaped.
const maxRequest = 512 << 10

// reply is the reply to a request, one line of JSON.
type reply struct {
	Status driver.Status `json:"status"`
	Error  string        `json:"error,omitempty"`
	// NotRunning says that the request came after the end of the run's command.
	NotRunning bool `json:"not_running,omitempty"`
	// Exit says how a further command ended. If Error is set, Exit.Code is the code for a
	// driver.CommandError.
	Exit driver.ExitStatus `json:"exit,omitzero"`
}

// maxClients bounds the connections. The agent needs only a few.
const maxClients = 64

// listen opens the run's socket in the current folder.
func listen() (net.Listener, error) {
	if err := os.Remove(socketFile); err != nil && !missing(err) {
		return nil, err
	}
	l, err := net.Listen("unix", socketFile)
	if err != nil {
		return nil, fmt.Errorf("socket of the run: %w", err)
	}
	return l, os.Chmod(socketFile, 0o600)
}

// serve handles requests until the listener is closed.
func (s *supervisor) serve(l net.Listener) {
	slots := make(chan struct{}, maxClients)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		slots <- struct{}{}
		s.clients.Add(1)
		go func() {
			defer s.clients.Done()
			defer func() { <-slots }()
			defer conn.Close()
			s.handle(conn.(*net.UnixConn))
		}()
	}
}

func (s *supervisor) handle(conn *net.UnixConn) {
	req, files, err := readRequest(conn)
	defer closeAll(files)
	if err != nil {
		return
	}
	switch req.Op {
	case "stop":
		select {
		case s.stops <- stopRequest{req.Grace}:
		case <-s.ended:
		}
		s.handleWait(conn)
	case "wait":
		s.handleWait(conn)
	case "renew":
		select {
		case s.renews <- lease.Deadline{At: req.Deadline, Number: req.Number}:
			respond(conn, reply{})
		case <-s.ended:
			s.handleWait(conn)
		}
	case "update":
		u := updateRequest{limits: req.Limits, done: make(chan error, 1)}
		select {
		case s.updates <- u:
			respond(conn, failed(<-u.done))
		case <-s.ended:
			respond(conn, reply{NotRunning: true})
		}
	case "signal":
		r := signalRequest{signal: req.Signal, done: make(chan error, 1)}
		select {
		case s.signals <- r:
			respond(conn, failed(<-r.done))
		case <-s.ended:
			respond(conn, reply{NotRunning: true})
		}
	case "exec":
		s.handleExec(conn, req, files)
	case "watch":
		s.handleWatch(conn)
	default:
		respond(conn, reply{Error: fmt.Sprintf("unknown operation %q", req.Op)})
	}
}

// readRequest reads a request and the descriptors that came with its first bytes.
func readRequest(conn *net.UnixConn) (req request, files []*os.File, err error) {
	buf, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(streams*4))
	n, rightsLen, _, _, err := conn.ReadMsgUnix(buf, rights)
	if err != nil {
		return req, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rightsLen])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "stream"))
		}
	}
	if err != nil {
		return req, files, err
	}
	in := bufio.NewReader(io.MultiReader(bytes.NewReader(buf[:n]), io.LimitReader(conn, maxRequest)))
	line, err := in.ReadBytes('\n')
	if err != nil {
		return req, files, err
	}
	return req, files, json.Unmarshal(line, &req)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// failed returns the reply for an error.
func failed(err error) reply {
	if err != nil {
		return reply{Error: err.Error()}
	}
	return reply{}
}

// handleWait replies when the run has ended. It gives up when the client closes the
// connection.
func (s *supervisor) handleWait(conn net.Conn) {
	gone := closed(conn)
	select {
	case <-s.ended:
		respond(conn, reply{Status: s.rec.Status})
	case <-gone:
	}
}

func (s *supervisor) handleWatch(conn net.Conn) {
	gone := closed(conn)
	for {
		// The channel is fetched before the line is sent, so that growth in between wakes
		// the next round.
		grown, more := s.grown.wait()
		if _, err := conn.Write([]byte("\n")); err != nil || !more {
			return
		}
		select {
		case <-grown:
		case <-gone:
			return
		}
	}
}

// closed returns a channel that is closed when the other side closes the connection. It
// discards everything that it reads from the connection.
func closed(conn net.Conn) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return gone
}

func respond(conn net.Conn, r reply) {
	if line, err := json.Marshal(r); err == nil {
		_, _ = conn.Write(append(line, '\n'))
	}
}
