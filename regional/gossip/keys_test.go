package gossip

import (
	"bytes"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"pgregory.net/rapid"
)

func key(c byte) []byte { return bytes.Repeat([]byte{c}, 32) }

func line(c byte) string { return base64.StdEncoding.EncodeToString(key(c)) + "\n" }

func TestParseKeys(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		keys int
		want string
	}{
		"one":             {line('a'), 1, ""},
		"two":             {"# in use\n" + line('a') + "\n  # next\n  " + line('b'), 2, ""},
		"none":            {"# nothing\n\n", 0, "0 keys, must be 1..8"},
		"too many":        {line('a') + line('b') + line('c') + line('d') + line('e') + line('f') + line('g') + line('h') + line('i'), 9, "9 keys"},
		"twice":           {line('a') + line('b') + line('a'), 3, "key 3 is given twice"},
		"a short key":     {"c2hvcnQ=\n", 1, "key 1 has 5 bytes"},
		"not base64":      {line('a') + "secret!\n", 0, "line 2 is not base64"},
		"without newline": {strings.TrimSpace(line('a')), 1, ""},
	} {
		keys, err := ParseKeys(c.text)
		if len(keys) != c.keys || (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, ErrKeys) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d keys, %v", name, len(keys), err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has a part of a key", name)
		}
	}
}

func TestReadKeysRefusesReadableFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(path, []byte(line('a')), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKeys(path); !errors.Is(err, ErrKeys) || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a readable file: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if keys, err := ReadKeys(path); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

// TestKeysChangeInSteps: a key is installed, then used, then the old one is removed. Steps that
// would separate this server from others are refused.
func TestKeysChangeInSteps(t *testing.T) {
	for name, c := range map[string]struct {
		now, next string
		want      error
	}{
		"install":              {"a", "ab", nil},
		"use":                  {"ab", "ba", nil},
		"remove":               {"ba", "b", nil},
		"back":                 {"ba", "ab", nil},
		"nothing":              {"ab", "ab", nil},
		"remove one in use":    {"ab", "b", ErrKeyInUse},
		"another":              {"a", "b", ErrKeyInUse},
		"use at once":          {"a", "ba", ErrKeyNotInstalled},
		"remove all":           {"a", "", ErrKeys},
		"install two, use one": {"ab", "bac", nil},
	} {
		if err := CheckChange(keysOf(c.now), keysOf(c.next)); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func keysOf(names string) [][]byte {
	var keys [][]byte
	for _, c := range []byte(names) {
		keys = append(keys, key(c))
	}
	return keys
}

// TestInstalledKeysAreThoseOfTheFile: whatever the ring had, it gets the keys in their order. A
// slice that a reader has does not change.
func TestInstalledKeysAreThoseOfTheFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() [][]byte {
			return keysOf(string(rapid.SliceOfNDistinct(rapid.ByteRange('a', 'f'), 1, 6, rapid.ID).Draw(t, "keys")))
		}
		now := draw()
		ring, err := memberlist.NewKeyring(nil, now[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, keys := range [][][]byte{now, draw(), draw()} {
			read := ring.GetKeys()
			before := slices.Clone(read)
			if err := install(ring, keys); err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(ring.GetKeys(), keys, bytes.Equal) {
				t.Errorf("the ring has %q, want %q", ring.GetKeys(), keys)
			}
			if !slices.EqualFunc(read, before, bytes.Equal) {
				t.Errorf("a reader's keys became %q, were %q", read, before)
			}
		}
	})
}
