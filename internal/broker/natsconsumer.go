package broker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ackWait is how long JetStream waits for an acknowledgement, or a Hold, before a message comes again.
	ackWait = 30 * time.Second
	// noID begins the id of a message without one: its place in the stream follows.
	noID = "seq"
	// headerRoom is what the headers of a dead letter take in bytes, besides their values.
	headerRoom = 512
)

// natsConsumer implements Consumer.
type natsConsumer struct {
	*natsConn
	messages jetstream.MessagesContext
	dead     *natsPublisher
	to       string
}

func newNATSConsumer(ctx context.Context, t *Target, u *url.URL, d *dialer, from Intake) (Consumer, error) {
	c, err := newNATS(t, u, d)
	if err != nil {
		return nil, err
	}
	messages, err := c.consume(ctx, from)
	if err != nil {
		err = c.why(err)
		c.Close()
		return nil, err
	}
	return &natsConsumer{natsConn: c, messages: messages, dead: &natsPublisher{natsConn: c}, to: from.DeadLetter}, nil
}

// consume begins to take messages by a durable consumer.
func (c *natsConn) consume(ctx context.Context, from Intake) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	stream, err := c.js.Stream(ctx, from.Stream)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", from.Stream, err)
	}
	consumer, err := stream.Consumer(ctx, from.Durable)
	missing := errors.Is(err, jetstream.ErrConsumerNotFound)
	if err == nil || missing {
		err = checkFilters(stream, consumer, from)
	}
	if err == nil && missing {
		consumer, err = stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: from.Durable, FilterSubject: from.Subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
			MaxAckPending: MaxInFlight, DeliverPolicy: jetstream.DeliverAllPolicy,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %q of stream %q: %w", from.Durable, from.Stream, err)
	}
	return consumer.Messages(jetstream.PullMaxMessages(from.InFlight), jetstream.PullExpiry(heartbeat), jetstream.PullHeartbeat(heartbeat/2))
}

// checkFilters returns an error if the consumer, which is nil if it is missing, does not take what it should. Its
// filter is not changed, because servers of NATS before 2.10 then pass on no message.
func checkFilters(stream jetstream.Stream, consumer jetstream.Consumer, from Intake) error {
	filters := []string{from.Subject}
	if consumer != nil {
		filters = append(slices.Clone(consumer.CachedInfo().Config.FilterSubjects), consumer.CachedInfo().Config.FilterSubject)
	}
	filters = slices.DeleteFunc(filters, func(f string) bool { return f == "" })
	switch {
	case from.Subject != "" && !slices.Equal(filters, []string{from.Subject}):
		return fmt.Errorf("it takes the subjects %q, and not %q: delete the consumer, or make an intake with another name", filters, from.Subject)
	case takes(stream.CachedInfo().Config.Subjects, filters, from.DeadLetter):
		return fmt.Errorf("it takes %q, the subject of its dead letters: give the intake a subject that leaves it out, or another subject for dead letters", from.DeadLetter)
	}
	return nil
}

// takes reports whether a consumer with some filters takes a subject of a stream. Without filters it takes all.
func takes(stream, filters []string, subject string) bool {
	matches := func(pattern string) bool { return matchSubject(pattern, subject) }
	return slices.ContainsFunc(stream, matches) && (len(filters) == 0 || slices.ContainsFunc(filters, matches))
}

// matchSubject reports whether a subject matches a pattern, in which * is one part, and > the rest.
func matchSubject(pattern, subject string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, part := range want {
		switch {
		case i == len(have):
			return false
		case part == ">":
			return true
		case part != "*" && part != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}

// Next implements Consumer.
func (c *natsConsumer) Next(ctx context.Context) (*Delivery, error) {
	stop := context.AfterFunc(ctx, c.messages.Stop)
	defer stop()
	m, err := c.messages.Next()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, c.why(err)
	}
	d := &Delivery{ID: m.Headers().Get(nats.MsgIdHdr), Key: m.Subject(), content: m.Headers().Get("Content-Type"), full: m.Data(), raw: m}
	if meta, err := m.Metadata(); d.ID == "" && err == nil {
		// The time tells the messages of a stream that was made again from those of the earlier one.
		d.ID = fmt.Sprintf("%s-%s-%d-%d", noID, meta.Stream, meta.Sequence.Stream, meta.Timestamp.UnixNano())
	}
	d.Body, d.TooLarge = bounded(m.Data())
	return d, nil
}

// bounded returns a body, unless it is too large.
func bounded(body []byte) ([]byte, bool) {
	if len(body) > MaxBody {
		return nil, true
	}
	return body, false
}

// Hold implements Consumer.
func (c *natsConsumer) Hold(d *Delivery) { _ = d.raw.(jetstream.Msg).InProgress() }

// Ack implements Consumer.
func (c *natsConsumer) Ack(ctx context.Context, d *Delivery) error {
	if err := d.raw.(jetstream.Msg).DoubleAck(ctx); err != nil {
		return c.why(err)
	}
	return nil
}

// Bury implements Consumer.
func (c *natsConsumer) Bury(ctx context.Context, d *Delivery, reason string) error {
	m := letter(d, c.to, reason)
	m.ID = "dead-" + m.ID // the stream of the dead letters may be that of the messages
	m = fit(m, c.conn.MaxPayload())
	if _, err := c.dead.Publish(ctx, []Message{m}); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	return c.Ack(ctx, d)
}

// fit leaves out the body of a dead letter that is greater than the server takes. The headers count, so that
// holds even for a body that the server took before.
func fit(m Message, most int64) Message {
	size := len(m.Body) + len(m.ID) + len(m.ContentType) + headerRoom
	for name, value := range m.Headers {
		size += len(name) + len(value) + 4
	}
	if int64(size) > most {
		m.Headers[ReasonHeader] += fmt.Sprintf("; the body of %d bytes is left out, because the server takes %d with the headers", len(m.Body), most)
		m.Body = nil
	}
	return m
}

// Close implements Consumer.
func (c *natsConsumer) Close() {
	c.messages.Stop()
	c.natsConn.Close()
}

// oneLine returns a text as the value of a header.
func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
}

// CheckFilter returns an error if a text is not a subject that may have wildcards.
func CheckFilter(s string) error {
	plain := strings.TrimSuffix(s, ".>")
	parts := strings.Split(plain, ".")
	for i, part := range parts {
		if part == "*" {
			parts[i] = "x"
		}
	}
	if s == ">" {
		return nil
	}
	return CheckSubject(strings.Join(parts, "."))
}

// CheckStream returns an error if a text is not the name of a stream.
func CheckStream(s string) error {
	if s == "" || len(s) > maxSubject || strings.ContainsAny(s, " \t\r\n.*>/\\\x00") {
		return fmt.Errorf("%.140q: give the name of a stream, which has no space, dot, * or >, and at most %d bytes", s, maxSubject)
	}
	return nil
}
