package broker

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpConsumer implements Consumer.
type amqpConsumer struct {
	*amqpConn
	deliveries <-chan amqp.Delivery
	dead       *amqpPublisher
	to         string
}

func newAMQPConsumer(t *Target, u *url.URL, d *dialer, from Intake) (Consumer, error) {
	c, err := newAMQP(t, u, d)
	if err != nil {
		return nil, err
	}
	out, err := c.consume(from)
	if err != nil {
		err = c.why(err)
		c.Close()
		return nil, err
	}
	return out, nil
}

// consume declares what is missing, and begins to take messages.
func (c *amqpConn) consume(from Intake) (*amqpConsumer, error) {
	for _, queue := range []string{from.DeadLetter, from.Queue} {
		if err := c.declareQueue(queue); err != nil {
			return nil, fmt.Errorf("queue %q: %w", queue, err)
		}
	}
	if from.Exchange != "" {
		if err := c.bind(from); err != nil {
			return nil, fmt.Errorf("exchange %q: %w", from.Exchange, err)
		}
	}
	dead, err := c.publisher("")
	if err != nil {
		return nil, err
	}
	ch, err := c.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(from.InFlight, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(from.Queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() { c.ended(<-closed) }()
	return &amqpConsumer{amqpConn: c, deliveries: deliveries, dead: dead, to: from.DeadLetter}, nil
}

// declareQueue declares a durable queue, unless there is one with the name.
func (c *amqpConn) declareQueue(name string) error {
	missing, err := c.missing(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	if err != nil || !missing {
		return err
	}
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	return errors.Join(err, ch.Close())
}

// bind binds the queue to the exchange.
func (c *amqpConn) bind(from Intake) error {
	if err := c.declareExchange(from.Exchange); err != nil {
		return err
	}
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	for _, key := range from.Keys {
		if err := ch.QueueBind(from.Queue, key, from.Exchange, false, nil); err != nil {
			return err
		}
	}
	return ch.Close()
}

// Next implements Consumer.
func (c *amqpConsumer) Next(ctx context.Context) (*Delivery, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case m, ok := <-c.deliveries:
		if !ok {
			return nil, c.why(ErrLost)
		}
		d := &Delivery{ID: m.MessageId, Key: m.RoutingKey, content: m.ContentType, full: m.Body, raw: m}
		d.Body, d.TooLarge = bounded(m.Body)
		return d, nil
	}
}

// Hold implements Consumer. RabbitMQ waits for half an hour.
func (c *amqpConsumer) Hold(*Delivery) {}

// Ack implements Consumer.
func (c *amqpConsumer) Ack(ctx context.Context, d *Delivery) error {
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	m := d.raw.(amqp.Delivery)
	if err := m.Ack(false); err != nil {
		return c.why(err)
	}
	return nil
}

// Bury implements Consumer.
func (c *amqpConsumer) Bury(ctx context.Context, d *Delivery, reason string) error {
	if _, err := c.dead.Publish(ctx, []Message{letter(d, c.to, reason)}); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	return c.Ack(ctx, d)
}
