package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpConn is a connection to RabbitMQ.
type amqpConn struct {
	conn   *amqp.Connection
	dialer *dialer
	gone   chan struct{}

	mu sync.Mutex
	// blocked is why the broker takes no message now. fault is why the connection or the channel ended.
	blocked string
	fault   error
}

func newAMQP(t *Target, u *url.URL, d *dialer) (*amqpConn, error) {
	config := amqp.Config{
		Heartbeat: heartbeat, Locale: "en_US", Dial: d.Dial, ChannelMax: 8,
		Properties: amqp.Table{"product": "nusa", "connection_name": "nusa"},
		SASL:       []amqp.Authentication{&amqp.PlainAuth{Username: t.user, Password: t.password}},
	}
	if t.user == "" {
		config.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
	}
	if u.Scheme == "amqps" {
		config.TLSClientConfig = t.tlsOf(u)
	} else {
		config.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conn, err := amqp.DialConfig(u.String(), config)
	if err != nil {
		return nil, err
	}
	c := &amqpConn{conn: conn, dialer: d, gone: make(chan struct{})}
	blocked, closed := conn.NotifyBlocked(make(chan amqp.Blocking, 1)), conn.NotifyClose(make(chan *amqp.Error, 1))
	go c.follow(blocked, closed)
	return c, nil
}

// follow notes what the broker says about the connection, until it ends.
func (c *amqpConn) follow(blocked <-chan amqp.Blocking, closed <-chan *amqp.Error) {
	defer close(c.gone)
	for blocked != nil || closed != nil {
		select {
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			c.mu.Lock()
			c.blocked = ""
			if b.Active {
				c.blocked = b.Reason
			}
			c.mu.Unlock()
		case err, ok := <-closed:
			if !ok {
				closed = nil
				continue
			}
			c.ended(err)
		}
	}
}

// ended notes why the connection or a channel ended.
func (c *amqpConn) ended(err *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil && err != nil {
		c.fault = fmt.Errorf("%w: %s", ErrLost, err.Reason)
		if err.Server {
			c.fault = fmt.Errorf("%w: %s", ErrRefused, err.Reason)
		}
	}
}

// why returns the cause of an error, for people.
func (c *amqpConn) why(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.fault != nil:
		return clean(c.fault)
	case c.blocked != "":
		return clean(fmt.Errorf("the broker takes no messages: %s", c.blocked))
	case errors.Is(err, amqp.ErrClosed):
		return ErrLost
	}
	return clean(err)
}

// Lost implements Publisher.
func (c *amqpConn) Lost() <-chan struct{} { return c.gone }

// kill ends the connection without a word, so that a write that blocks ends.
func (c *amqpConn) kill() { c.dialer.close() }

// Close implements Publisher.
func (c *amqpConn) Close() {
	stop := time.AfterFunc(time.Second, c.kill)
	_ = c.conn.Close()
	stop.Stop()
	c.kill()
	<-c.gone
}

// missing reports whether the broker has no such exchange or queue. A passive declaration that fails
// closes its channel, so it gets one of its own.
func (c *amqpConn) missing(declare func(*amqp.Channel) error) (bool, error) {
	ch, err := c.conn.Channel()
	if err != nil {
		return false, err
	}
	err = declare(ch)
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.NotFound {
		return true, nil
	}
	return false, errors.Join(err, ch.Close())
}

// amqpPublisher implements Publisher.
type amqpPublisher struct {
	*amqpConn
	channel  *amqp.Channel
	exchange string
	returns  <-chan amqp.Return
}

func newAMQPPublisher(t *Target, u *url.URL, d *dialer, exchange string) (Publisher, error) {
	c, err := newAMQP(t, u, d)
	if err != nil {
		return nil, err
	}
	p, err := c.publisher(exchange)
	if err != nil {
		err = c.why(err)
		c.Close()
		return nil, err
	}
	return p, nil
}

// publisher opens a channel that confirms each message.
func (c *amqpConn) publisher(exchange string) (*amqpPublisher, error) {
	if exchange != "" {
		if err := c.declareExchange(exchange); err != nil {
			return nil, err
		}
	}
	ch, err := c.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	// A return comes before the confirmation of its message, and the channel has room for all of a batch.
	p := &amqpPublisher{amqpConn: c, channel: ch, exchange: exchange, returns: ch.NotifyReturn(make(chan amqp.Return, MaxBatch))}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() { c.ended(<-closed) }()
	return p, nil
}

// declareExchange declares a durable topic exchange, unless there is an exchange with the name.
func (c *amqpConn) declareExchange(name string) error {
	missing, err := c.missing(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
	})
	if err != nil || !missing {
		return err
	}
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	return errors.Join(ch.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil), ch.Close())
}

// Publish implements Publisher.
func (p *amqpPublisher) Publish(ctx context.Context, all []Message) (int, error) {
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	sent := make([]*amqp.DeferredConfirmation, 0, len(all))
	var failed error
	for _, m := range all {
		var c *amqp.DeferredConfirmation
		c, failed = p.channel.PublishWithDeferredConfirmWithContext(ctx, p.exchange, m.Key, true, false, publishing(m))
		if failed != nil {
			break
		}
		sent = append(sent, c)
	}
	returned := map[string]bool{}
	for i, c := range sent {
		acked, err := c.WaitContext(ctx)
		switch {
		case err != nil || !acked && ctx.Err() != nil:
			return i, p.late(ctx)
		case !acked:
			return i, p.why(ErrRefused)
		}
		for len(p.returns) > 0 {
			r := <-p.returns
			returned[r.MessageId] = true
		}
		if returned[all[i].ID] {
			return i, fmt.Errorf("%w: no queue is bound to exchange %q for routing key %q", ErrUnrouted, p.exchange, all[i].Key)
		}
	}
	if failed != nil {
		return len(sent), p.why(failed)
	}
	return len(all), nil
}

func (p *amqpPublisher) late(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked != "" {
		return clean(fmt.Errorf("the broker takes no messages: %s", p.blocked))
	}
	return lateError(ctx)
}

func publishing(m Message) amqp.Publishing {
	out := amqp.Publishing{MessageId: m.ID, ContentType: m.ContentType, DeliveryMode: amqp.Persistent, AppId: "nusa", Timestamp: time.Now(), Body: m.Body}
	if len(m.Headers) > 0 {
		out.Headers = amqp.Table{}
		for k, v := range m.Headers {
			out.Headers[k] = v
		}
	}
	return out
}

// CheckName returns an error if a text is not the name of an exchange or a queue.
func CheckName(s string) error {
	if len(s) > maxSubject || strings.HasPrefix(s, "amq.") || strings.ContainsAny(s, "\x00\r\n") {
		return fmt.Errorf("%.140q: a name has at most %d bytes, and does not begin with \"amq.\"", s, maxSubject)
	}
	return nil
}
