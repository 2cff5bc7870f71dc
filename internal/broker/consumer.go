package broker

import (
	"context"
	"net/url"
	"time"
)

const (
	// maxReason bounds the reason of a dead letter, in bytes.
	maxReason = 1024
	// ReasonHeader has the reason of a dead letter.
	ReasonHeader = "nusa-reason"
	// MaxBody is the greatest body of a message that a Consumer returns, in bytes. A greater one has an
	// empty body and the flag TooLarge.
	MaxBody = 1 << 20
	// MaxInFlight bounds the messages that a Consumer holds.
	MaxInFlight = 256
)

// Intake says where a Consumer takes messages. Only the fields of the target's kind are used.
type Intake struct {
	// Queue, Exchange and Keys are those of RabbitMQ. The queue is bound to the exchange by the keys, unless
	// Exchange is empty. Both are declared durable if they are missing.
	Queue, Exchange string
	Keys            []string
	// Stream, Durable and Subject are those of NATS: the stream, the name of the consumer, which is made if
	// it is missing, and the subjects, empty for all.
	Stream, Durable, Subject string
	// DeadLetter is the queue (RabbitMQ) or subject (NATS) for messages that cannot be taken.
	DeadLetter string
	// InFlight is the most messages that are taken and not acknowledged.
	InFlight int
}

// Delivery is a message that was taken from a broker.
type Delivery struct {
	// ID is the same when the message comes again. Empty: the message has none.
	ID   string
	Key  string
	Body []byte
	// TooLarge: the body is greater than MaxBody.
	TooLarge bool

	content string
	full    []byte // the body, however large it is
	raw     any    // the message of the client
}

// Consumer is a connection that takes messages. It is not safe for concurrent use.
type Consumer interface {
	// Next waits for a message. After an error that is not that of ctx, the consumer must be closed.
	Next(ctx context.Context) (*Delivery, error)
	// Hold tells the broker that a message is still being worked on. It is called now and then.
	Hold(d *Delivery)
	// Ack tells the broker that a message is done.
	Ack(ctx context.Context, d *Delivery) error
	// Bury publishes a message as a dead letter, waits until it is stored, and then does Ack. The message may
	// come again after an error, and is then buried twice, with the same id.
	Bury(ctx context.Context, d *Delivery, reason string) error
	// Lost returns a channel that is closed when the connection has ended.
	Lost() <-chan struct{}
	// Close ends the connection. The broker gives what was not acknowledged to the next consumer.
	Close()
}

// NewConsumer connects to a broker. It tries its addresses in order. The error has no secret.
func NewConsumer(ctx context.Context, t *Target, from Intake) (Consumer, error) {
	if t.Kind == NATS {
		return connect(ctx, t, func(u *url.URL, d *dialer) (Consumer, error) { return newNATSConsumer(ctx, t, u, d, from) })
	}
	return connect(ctx, t, func(u *url.URL, d *dialer) (Consumer, error) { return newAMQPConsumer(t, u, d, from) })
}

// letter returns the dead letter of a message.
func letter(d *Delivery, key, reason string) Message {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return Message{
		ID: d.ID, Key: key, ContentType: d.content, Body: d.full,
		Headers: map[string]string{ReasonHeader: oneLine(reason), "nusa-key": d.Key, "nusa-time": time.Now().UTC().Format(time.RFC3339)},
	}
}
