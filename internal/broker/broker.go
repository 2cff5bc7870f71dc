package broker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/nusa-scheduler/nusa/internal/webhook"
)

// Bounds of a connection.
const (
	// handshake bounds the time until a connection is open, for each address.
	handshake = 10 * time.Second
	// heartbeat is how often a connection without traffic is checked. A dead one is noticed after twice
	// that.
	heartbeat = 10 * time.Second
	// MaxBatch is the most messages of one Publish.
	MaxBatch = 128
)

// Errors of a Publisher.
var (
	// ErrUnrouted says that the broker stored a message nowhere.
	ErrUnrouted = errors.New("the broker stores no message with this subject")
	// ErrRefused says that the broker did not confirm a message.
	ErrRefused = errors.New("the broker refused the message")
	// ErrLost says that the connection has ended.
	ErrLost = errors.New("the connection to the broker was lost")
)

// Message is what is published.
type Message struct {
	// ID is the same in each attempt, so that the broker or the consumer can ignore repetitions.
	ID string
	// Key selects who gets the message: the end of the subject (NATS), or the routing key (RabbitMQ).
	Key         string
	ContentType string
	Headers     map[string]string
	Body        []byte
}

// Publisher is a connection that publishes. It is not safe for concurrent use.
type Publisher interface {
	// Publish sends at most MaxBatch messages in order, and waits until the broker has stored them. It
	// returns how many of the first ones are confirmed. After an error, or the end of ctx, the others
	// may be stored or not, and the publisher must be closed.
	Publish(ctx context.Context, all []Message) (confirmed int, err error)
	// Lost returns a channel that is closed when the connection has ended.
	Lost() <-chan struct{}
	// Close ends the connection.
	Close()
}

// Sink says where a Publisher publishes to. Only the field of the target's kind is used.
type Sink struct {
	// Subject is the beginning of the subjects (NATS), without the last dot.
	Subject string
	// Exchange is a topic exchange (RabbitMQ). It is declared durable if it is missing. The empty name is
	// the default exchange, which takes the name of a queue as routing key.
	Exchange string
}

// NewPublisher connects to a broker. It tries its addresses in order. The error has no secret.
func NewPublisher(ctx context.Context, t *Target, to Sink) (Publisher, error) {
	if t.Kind == NATS {
		return connect(ctx, t, func(u *url.URL, d *dialer) (Publisher, error) { return newNATSPublisher(t, u, d, to.Subject) })
	}
	return connect(ctx, t, func(u *url.URL, d *dialer) (Publisher, error) { return newAMQPPublisher(t, u, d, to.Exchange) })
}

// connect calls open for each address until one succeeds.
func connect[C any](ctx context.Context, t *Target, open func(*url.URL, *dialer) (C, error)) (C, error) {
	var none C
	var first error
	for _, u := range t.urls {
		d := &dialer{ctx: ctx, policy: t.policy}
		c, err := open(u, d)
		d.release()
		if err == nil {
			return c, nil
		}
		d.close()
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", u.Host, clean(d.cause(err)))
		}
	}
	return none, first
}

// cleaned is an error with a text of bounded length on one line.
type cleaned struct {
	error
	text string
}

func (c cleaned) Error() string { return c.text }
func (c cleaned) Unwrap() error { return c.error }

// clean returns an error whose text is bounded, because a broker sends parts of it.
func clean(err error) error { return cleaned{err, webhook.Cause(err)} }
