package uplink

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// KeysDocument is the key of the record in the region's log about the roots and keys that the
// region's members should have, a nusav1.KeyGoal.
const KeysDocument = "keys"

// StoredKeys returns what the members of the region should have, or nil if the region has stored
// nothing that this server can read. version is that of the document.
func StoredKeys(view *state.View) (goal *nusav1.KeyGoal, version uint64) {
	d, found := view.Document(KeysDocument)
	if !found {
		return nil, 0
	}
	goal = &nusav1.KeyGoal{}
	if proto.Unmarshal(d.Value, goal) != nil {
		return nil, d.Version
	}
	return goal, d.Version
}

// storeKeys commits what the members of the region should have. A region that cannot store it
// ignores it, and then its members do not converge.
func storeKeys(ctx context.Context, ss *session, goal *nusav1.KeyGoal) error {
	cfg := &ss.u.cfg
	view := cfg.FSM.View()
	if view.Cluster().FeatureLevel < state.DocumentLevel {
		cfg.Logger.Warn("the roots and keys of the federation change, and this region cannot follow: upgrade all its servers")
		return nil
	}
	if have, version := StoredKeys(view); version > 0 && proto.Equal(have, goal) {
		return nil
	}
	raw, err := wire.Deterministic.Marshal(goal)
	if err != nil {
		return fmt.Errorf("encode the wanted keys: %w", err)
	}
	r, err := cfg.Log.CommitQueued(ctx, state.Command{ChangeDocuments: &state.ChangeDocuments{Puts: []state.Document{{Key: KeysDocument, Value: raw}}}})
	if err == nil {
		err = r.Err
	}
	if errors.Is(err, state.ErrFull) || errors.Is(err, state.ErrInvalid) { // it would also fail in another session
		cfg.Logger.Warn("the received roots and keys are not stored, so the members of this region do not follow", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("store the wanted keys: %w", err)
	}
	return nil
}
