package gossip

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"
)

// maxKeys bounds the keys of a server, and maxKeyFile the bytes of a file with keys.
const maxKeys, maxKeyFile = 8, 4 << 10

// Errors about keys. The text of an error says what to do.
var (
	// ErrKeys means that keys cannot be read.
	ErrKeys = errors.New("keys of gossip")
	// ErrKeyInUse means that the key with which this server encrypts would be removed.
	ErrKeyInUse = errors.New("the key in use would be removed")
	// ErrKeyNotInstalled means that a key would be used that this server did not have before.
	ErrKeyNotInstalled = errors.New("a new key would be used at once")
)

// ParseKeys returns the keys of a file. Each line has one key of 16, 24 or 32 bytes in base64.
// Blank lines and lines that begin with # are ignored. An error never has a part of a key.
func ParseKeys(text string) ([][]byte, error) {
	var keys [][]byte
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d is not base64", ErrKeys, number)
		}
		keys = append(keys, key)
	}
	return keys, CheckKeys(keys)
}

// CheckKeys returns an error if a server cannot have these keys.
func CheckKeys(keys [][]byte) error {
	if len(keys) == 0 || len(keys) > maxKeys {
		return fmt.Errorf("%w: %d keys, must be 1..%d", ErrKeys, len(keys), maxKeys)
	}
	for i, key := range keys {
		if memberlist.ValidateKey(key) != nil {
			return fmt.Errorf("%w: key %d has %d bytes, must have 16, 24 or 32", ErrKeys, i+1, len(key))
		}
		if indexOf(keys, key) < i {
			return fmt.Errorf("%w: key %d is given twice", ErrKeys, i+1)
		}
	}
	return nil
}

// CheckChange returns an error if a running server must not replace its keys by next. The
// first key of each encrypts. Other servers may lack a key that this server did not have
// before, and may still encrypt with the one that this server uses now. So a key is replaced in
// three steps: it is installed everywhere, then used everywhere, then the old one is removed.
func CheckChange(now, next [][]byte) error {
	if err := CheckKeys(next); err != nil {
		return err
	}
	switch {
	case indexOf(next, now[0]) < 0:
		return fmt.Errorf("%w: first let each server of the region use another key, which is the first of its file, and remove this one then", ErrKeyInUse)
	case indexOf(now, next[0]) < 0:
		return fmt.Errorf("%w: first put it after the key in use on each server of the region, and use it then", ErrKeyNotInstalled)
	}
	return nil
}

func indexOf(keys [][]byte, key []byte) int {
	return slices.IndexFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// KeyID names a key in logs. It says nothing about the key.
func KeyID(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// ReadKeys reads a file of keys, which its owner alone may read.
func ReadKeys(path string) ([][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%w: %s can be read by other users than its owner: run chmod 600 %s", ErrKeys, path, path)
	case info.Size() > maxKeyFile:
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d", ErrKeys, path, info.Size(), maxKeyFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	keys, err := ParseKeys(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// install brings a ring to the keys, in their order. A key that is removed is always the last of
// the ring, because Keyring.RemoveKey would otherwise write into a slice that readers have.
func install(ring *memberlist.Keyring, keys [][]byte) error {
	for _, key := range keys {
		if err := ring.AddKey(key); err != nil {
			return err
		}
	}
	for _, key := range slices.Backward(keys) {
		if err := ring.UseKey(key); err != nil { // moves the key to the front
			return err
		}
	}
	for all := ring.GetKeys(); len(all) > len(keys); all = ring.GetKeys() {
		if err := ring.RemoveKey(all[len(all)-1]); err != nil {
			return err
		}
	}
	return nil
}
