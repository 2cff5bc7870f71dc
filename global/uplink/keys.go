package uplink

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// keysMessage returns which roots and keys the members of the region should have, or nil if the
// region knows. The lock is held.
func (c *session) keysMessage() *nusav1.GlobalMessage {
	if c.server.Keys == nil {
		return nil
	}
	goal := c.server.Keys(c.region)
	if goal == nil || goal == c.keysSent {
		return nil
	}
	c.keysSent = goal
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Keys{Keys: goal}}
}
