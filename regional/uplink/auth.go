package uplink

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// authDocument is the key of the region's copy of who may do what.
const authDocument = "auth"

// StoredAuth returns the region's copy of who may do what, and the document that has it. Both are
// nil if the region has stored nothing.
func StoredAuth(view *state.View) (*nusav1.AuthSet, *state.Document, error) {
	d, found := view.Document(authDocument)
	if !found {
		return nil, nil, nil
	}
	msg := &nusav1.AuthSet{}
	if err := proto.Unmarshal(d.Value, msg); err != nil {
		return nil, d, fmt.Errorf("stored roles, bindings and tokens: %w", err)
	}
	return msg, d, nil
}

// SameAuth reports whether a view has this document of who may do what. nil: the view has none.
func SameAuth(view *state.View, document *state.Document) bool {
	d, _ := view.Document(authDocument)
	return d == document
}

// addKnownAuth adds what the region has stored of who may do what. It adds nothing while the region's
// log cannot store that.
func addKnownAuth(to *nusav1.KnownSets, view *state.View) {
	if view.Cluster().FeatureLevel < state.DocumentLevel {
		return
	}
	msg, _, err := StoredAuth(view)
	to.Auth, to.AuthVersion = sets.HashAuth(msg), msg.GetVersion()
	if msg == nil || err != nil {
		// This differs from the hash at the global tier. So the global tier sends the set, even an empty
		// one: until then operators may do nothing here.
		to.Auth = 1
	}
}

// storeAuth commits who may do what to the region's log, and acknowledges it.
func storeAuth(ctx context.Context, ss *session, msg *nusav1.AuthSet) error {
	cfg := &ss.u.cfg
	if _, err := rights.New(msg); err != nil {
		cfg.Logger.Warn("received roles, bindings and tokens are not used: upgrade this region", "error", err)
		return nil
	}
	raw, err := wire.Deterministic.Marshal(msg)
	if err != nil {
		return fmt.Errorf("encode roles, bindings and tokens: %w", err)
	}
	r, err := cfg.Log.CommitQueued(ctx, state.Command{ChangeDocuments: &state.ChangeDocuments{Puts: []state.Document{{Key: authDocument, Value: raw}}}})
	if err == nil {
		err = r.Err
	}
	if errors.Is(err, state.ErrFull) || errors.Is(err, state.ErrInvalid) { // it would also fail in another session
		cfg.Logger.Warn("received roles, bindings and tokens are not stored, and the earlier ones stay in use", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("store roles, bindings and tokens: %w", err)
	}
	ss.update(func() { ss.authAck = &nusav1.AuthAck{Hash: sets.HashAuth(msg), Version: msg.GetVersion()} })
	return nil
}
