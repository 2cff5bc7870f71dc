package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/serve"
)

const (
	// terminalProtocol is the subprotocol of a WebSocket for exec.
	terminalProtocol = "nusa.exec.v1"
	// tokenProtocol is the beginning of a subprotocol that has the access token of a browser, which
	// cannot set headers. The server does not choose that subprotocol.
	tokenProtocol = "nusa.token."
	// maxFrame bounds a message of a WebSocket, in bytes. The input of a command comes in pieces of at
	// most 32 KiB.
	maxFrame = 128 << 10
	// firstFrame is how long a client may take for its first message.
	firstFrame = 10 * time.Second
)

// isWebSocket reports whether a request asks for a WebSocket.
func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// serveTerminal runs a command over a WebSocket. Each message is the JSON of an ExecRequest or an
// ExecResponse. The first message of the client may be {"token": "…"} instead.
func serveTerminal(a *api, op *operation, plain http.ResponseWriter, r *http.Request) {
	var patterns []string
	for _, origin := range a.o.Origins {
		if u, err := url.Parse(origin); err == nil {
			patterns = append(patterns, u.Host)
		}
	}
	w := newWriter(plain, r)
	defer func() { a.counted(op, w) }()
	auth, p := terminalCredential(r)
	if p == nil && len(r.URL.Query()) > 0 {
		p = refusal(http.StatusBadRequest, codes.InvalidArgument, "the operation has no parameters: an access token does not belong into an address")
	}
	if p != nil {
		w.fail(p, r)
		return
	}
	if !a.enter() {
		w.fail(tooMany(), r)
		return
	}
	defer a.leave()
	_ = w.control.SetReadDeadline(time.Time{})
	_ = w.control.SetWriteDeadline(time.Time{})
	conn, err := websocket.Accept(plain, r, &websocket.AcceptOptions{Subprotocols: []string{terminalProtocol}, OriginPatterns: patterns})
	if err != nil {
		w.status = http.StatusForbidden
		return // Accept has answered
	}
	w.status = http.StatusSwitchingProtocols
	defer serve.Unlink(r)
	conn.SetReadLimit(maxFrame)
	// The connection was taken over, so its end no longer ends the context of the request.
	ctx, end := context.WithCancel(context.WithValue(context.WithoutCancel(r.Context()), callKey{}, &call{op: op, r: r, w: w}))
	s := &terminal{conn: conn, ctx: ctx, accepted: sync.OnceFunc(func() { serve.Keep(r) })}
	var wg sync.WaitGroup
	defer func() {
		end()
		_ = conn.CloseNow()
		wg.Wait()
	}()
	if auth == "" {
		auth, err = s.firstToken()
	}
	if err == nil {
		if auth != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", auth)
		}
		wg.Go(func() { s.ping(end) })
		err = execute(ctx, &wg, s.next, s.send)
	}
	if err != nil {
		_ = s.write(problemOf(err).frame(r))
		_ = conn.Close(websocket.StatusInternalError, "the last message is the error")
		return
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

// terminalCredential returns the access token in the headers of a request.
func terminalCredential(r *http.Request) (string, *problem) {
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for _, p := range strings.Split(header, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol); ok && printable(token) {
				return "Bearer " + token, nil
			}
		}
	}
	return credential(r)
}

// terminal is a WebSocket on which a command runs.
type terminal struct {
	conn *websocket.Conn
	ctx  context.Context
	// first is a message that was read already.
	first []byte
	// accepted notes that the server has accepted the call. From then on, many connections of others do not
	// end this one.
	accepted func()
}

// firstToken reads the first message. It returns the credential if that message is a token.
func (s *terminal) firstToken() (string, error) {
	ctx, end := context.WithTimeout(s.ctx, firstFrame)
	defer end()
	_, data, err := s.conn.Read(ctx)
	if err != nil {
		return "", err
	}
	var m struct{ Token string }
	if json.Unmarshal(data, &m) == nil && printable(m.Token) {
		return "Bearer " + m.Token, nil
	}
	s.first = data
	return "", nil
}

// next returns the next message of the client.
func (s *terminal) next() ([]byte, error) {
	if first := s.first; first != nil {
		s.first = nil
		return first, nil
	}
	_, data, err := s.conn.Read(s.ctx)
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure || websocket.CloseStatus(err) == websocket.StatusGoingAway {
		return nil, errors.Join(errors.New("the client has left"), io.ErrUnexpectedEOF)
	}
	return data, err
}

func (s *terminal) send(m proto.Message) error {
	s.accepted()
	data, err := marshal(m)
	if err != nil {
		return err
	}
	return s.write(data)
}

func (s *terminal) write(data []byte) error {
	ctx, end := context.WithTimeout(s.ctx, slowest)
	defer end()
	return s.conn.Write(ctx, websocket.MessageText, data)
}

// ping ends the command when the client answers no more.
func (s *terminal) ping(end func()) {
	ticks := time.NewTicker(pingEvery)
	defer ticks.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticks.C:
		}
		ctx, done := context.WithTimeout(s.ctx, slowest)
		err := s.conn.Ping(ctx)
		done()
		if err != nil {
			end()
			return
		}
	}
}
