package broker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// credsMark begins the text of a NATS credentials file.
const credsMark = "-----BEGIN NATS USER JWT-----"

// natsConn is a connection to NATS. It does not connect again by itself: its owner does, so that every
// connection is opened by the policy, and with bounds.
type natsConn struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	dialer *dialer
	gone   chan struct{}

	mu    sync.Mutex
	fault error // the latest error that the server sent about no request in particular
}

func newNATS(t *Target, u *url.URL, d *dialer) (*natsConn, error) {
	c := &natsConn{dialer: d, gone: make(chan struct{})}
	config := t.tlsOf(u)
	opts := []nats.Option{
		nats.Name("nusa"), nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.Timeout(handshake), nats.SetCustomDialer(d),
		nats.PingInterval(heartbeat), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(handshake),
		nats.ClosedHandler(func(*nats.Conn) { close(c.gone) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.note(err) }),
		func(o *nats.Options) error {
			o.TLSConfig, o.Secure = config, u.Scheme == "tls"
			return nil
		},
	}
	switch {
	case strings.Contains(t.password, credsMark):
		opts = append(opts, nats.UserCredentialBytes([]byte(t.password)))
	case t.user != "":
		opts = append(opts, nats.UserInfo(t.user, t.password))
	case t.password != "":
		opts = append(opts, nats.Token(t.password))
	}
	var err error
	c.conn, err = nats.Connect(u.Scheme+"://"+u.Host, opts...)
	if err != nil {
		return nil, err
	}
	c.js, err = jetstream.New(c.conn)
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// note remembers an error, for example a missing right, which the server does not send to the request.
func (c *natsConn) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
}

// why returns the cause of an error, for people.
func (c *natsConn) why(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: no stream has it; add a stream with this subject", ErrUnrouted)
	case c.fault != nil:
		return clean(c.fault)
	case errors.Is(err, nats.ErrConnectionClosed):
		return ErrLost
	}
	return clean(err)
}

// Lost implements Publisher.
func (c *natsConn) Lost() <-chan struct{} { return c.gone }

// Close implements Publisher.
func (c *natsConn) Close() {
	c.dialer.close() // Close writes what is buffered, and the other side may not read
	c.conn.Close()
	<-c.gone
}

// natsPublisher implements Publisher.
type natsPublisher struct {
	*natsConn
	subject string
}

func newNATSPublisher(t *Target, u *url.URL, d *dialer, subject string) (Publisher, error) {
	c, err := newNATS(t, u, d)
	if err != nil {
		return nil, err
	}
	return &natsPublisher{c, subject}, nil
}

// Publish implements Publisher.
func (p *natsPublisher) Publish(ctx context.Context, all []Message) (int, error) {
	sent := make([]jetstream.PubAckFuture, 0, len(all))
	var failed error
	for _, m := range all {
		msg := &nats.Msg{Subject: joined(p.subject, m.Key), Data: m.Body, Header: nats.Header{"Content-Type": {m.ContentType}}}
		for k, v := range m.Headers {
			msg.Header[k] = []string{v}
		}
		var f jetstream.PubAckFuture
		f, failed = p.js.PublishMsgAsync(msg, jetstream.WithMsgID(m.ID), jetstream.WithRetryAttempts(0))
		if failed != nil {
			break
		}
		sent = append(sent, f)
	}
	for i, f := range sent {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return i, fmt.Errorf("%s: %w", f.Msg().Subject, p.why(err))
		case <-p.gone:
			return i, p.why(ErrLost)
		case <-ctx.Done():
			return i, p.late(ctx)
		}
	}
	if failed != nil {
		return len(sent), p.why(failed)
	}
	return len(all), nil
}

// late returns the error of a broker that did not answer in time.
func (p *natsPublisher) late(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault != nil {
		return clean(p.fault)
	}
	return lateError(ctx)
}

// lateError returns the error of a broker that did not answer before the end of a context.
func lateError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("the broker did not confirm the message in time")
	}
	return ctx.Err()
}

// joined joins the parts of a subject. An empty part is left out.
func joined(prefix, key string) string {
	switch {
	case key == "":
		return prefix
	case prefix == "":
		return key
	}
	return prefix + "." + key
}

// CheckSubject returns an error if a text is not a subject without wildcards.
func CheckSubject(s string) error {
	if len(s) > maxSubject || strings.ContainsAny(s, " \t\r\n*>\x00") || strings.HasPrefix(s, "$") || strings.Contains("."+s+".", "..") {
		return fmt.Errorf("%.140q: a subject has parts joined by dots, no space, * or >, and at most %d bytes", s, maxSubject)
	}
	return nil
}

// maxSubject bounds the names of subjects, exchanges and queues, in bytes.
const maxSubject = 128
