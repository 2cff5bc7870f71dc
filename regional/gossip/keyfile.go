package gossip

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/nusa-scheduler/nusa/internal/wait"
)

// readKeysEvery is how often a running server reads its file of keys.
const readKeysEvery = 2 * time.Second

// newRing returns the keys with which a server starts. It returns nil without keys.
func newRing(cfg Config) (*memberlist.Keyring, error) {
	keys := cfg.Keys
	if cfg.KeyFile != "" {
		var err error
		keys, err = ReadKeys(cfg.KeyFile)
		if err != nil {
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	if err := CheckKeys(keys); err != nil {
		return nil, err
	}
	ring, err := memberlist.NewKeyring(nil, keys[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	return ring, install(ring, keys)
}

// Encrypted reports whether this server encrypts, and accepts nothing else.
func (g *Group) Encrypted() bool { return g.ring != nil }

// SetKeys replaces the keys of a running server. The first key encrypts. An error of
// CheckChange says why the keys stay as they are.
func (g *Group) SetKeys(keys [][]byte) error {
	if g.ring == nil {
		return fmt.Errorf("%w: this server was started without any: restart it with keys", ErrKeys)
	}
	g.changingKeys.Lock()
	defer g.changingKeys.Unlock()
	now := g.ring.GetKeys()
	if slices.EqualFunc(now, keys, slices.Equal[[]byte]) {
		return nil
	}
	err := CheckKeys(keys)
	if !g.cfg.Given {
		err = CheckChange(now, keys)
	}
	if err != nil {
		return err
	}
	if err := install(g.ring, keys); err != nil {
		return fmt.Errorf("%w: %w", ErrKeys, err)
	}
	g.cfg.Logger.Info("the keys of gossip have changed", "keys", len(keys), "used", KeyID(keys[0]))
	return nil
}

// KeyIDs names the keys of this server. The first one encrypts. There are none without encryption.
func (g *Group) KeyIDs() []string {
	if g.ring == nil {
		return nil
	}
	var out []string
	for _, key := range g.ring.GetKeys() {
		out = append(out, KeyID(key))
	}
	return out
}

// watchKeys reads the file of keys until ctx ends. A file that cannot be used has no effect.
func (g *Group) watchKeys(ctx context.Context) {
	last := ""
	for range wait.Ticks(ctx, readKeysEvery) {
		keys, err := ReadKeys(g.cfg.KeyFile)
		if err == nil {
			err = g.SetKeys(keys)
		}
		if err == nil {
			last = ""
			continue
		}
		if text := err.Error(); text != last {
			g.cfg.Logger.Warn("cannot use the changed keys of gossip: the earlier ones stay in use", "file", g.cfg.KeyFile, "error", err)
			last = text
		}
	}
}
