package nodes

import "testing"

// TestSendStateTransitions lists every transition with its result. act says whether the
// caller must act: enqueue, send or check again.
func TestSendStateTransitions(t *testing.T) {
	type result struct {
		next sendState
		act  bool
	}
	events := map[string]func(*sendState) bool{
		"request": (*sendState).request, "start": (*sendState).start, "takeTurn": (*sendState).takeTurn, "finish": (*sendState).finish,
	}
	for event, wants := range map[string]map[sendState]result{
		"request": {
			sendIdle: {sendQueued, true}, sendQueued: {sendQueued, false},
			sendActive: {sendAgain, false}, sendActiveQueued: {sendAgainQueued, false},
			sendAgain: {sendAgain, false}, sendAgainQueued: {sendAgainQueued, false}, sendFailed: {sendFailed, false},
		},
		"start": {
			sendIdle: {sendActive, true}, sendQueued: {sendActiveQueued, true},
			sendActive: {sendAgain, false}, sendActiveQueued: {sendAgainQueued, false},
			sendAgain: {sendAgain, false}, sendAgainQueued: {sendAgainQueued, false}, sendFailed: {sendFailed, false},
		},
		"takeTurn": { // only a queued session has a turn
			sendQueued: {sendActive, true}, sendActiveQueued: {sendAgain, false}, sendAgainQueued: {sendAgain, false}, sendFailed: {sendFailed, false},
		},
		"finish": { // only the goroutine that sends calls finish
			sendActive: {sendIdle, false}, sendActiveQueued: {sendQueued, false},
			sendAgain: {sendActive, true}, sendAgainQueued: {sendActiveQueued, true}, sendFailed: {sendFailed, false},
		},
	} {
		for from, want := range wants {
			s := from
			if act := events[event](&s); s != want.next || act != want.act {
				t.Errorf("%s in state %d: state %d, act %v; want %d, %v", event, from, s, act, want.next, want.act)
			}
		}
	}
}
