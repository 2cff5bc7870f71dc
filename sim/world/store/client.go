package store

import (
	"time"

	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// Client is one global server's connection to the store.
type Client struct {
	p     *machine.Proc
	s     *Store
	e     *machine.End
	next  int
	waits map[int]func(v any, err error)
}

func NewClient(p *machine.Proc, s *Store) *Client {
	return &Client{p: p, s: s, waits: map[int]func(any, error){}}
}

// Call sends a request to the store. If no reply arrives in time, the error is errNoReply, and the
// outcome is unknown.
func (c *Client) Call(timeout time.Duration, do func(s *Store) (any, error), done func(v any, err error)) {
	if c.e == nil || !c.e.Open {
		e := c.p.H.E.Net.Dial(c.p, c.s.P)
		e.Recv = func(m any) {
			r := m.(reply)
			if f := c.waits[r.id]; f != nil {
				delete(c.waits, r.id)
				f(r.v, r.err)
			}
		}
		c.e = e
	}
	c.next++
	id := c.next
	c.waits[id] = done
	c.e.Send(call{id, do})
	c.p.After(timeout, func() {
		if f := c.waits[id]; f != nil {
			delete(c.waits, id)
			f(nil, errNoReply)
		}
	})
}
