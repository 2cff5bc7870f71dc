package taskpage

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
)

// IDBytes is the length of a UUID.
const IDBytes = 16

// Key is the place of a record in the history: records that were placed later have greater keys.
type Key struct {
	Placed int64 // Unix time in nanoseconds; 0 or more
	ID     [IDBytes]byte
}

// Size is the length of an encoded Key.
const Size = 8 + IDBytes

// Compare orders keys like their encodings.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(uint64(k.Placed), uint64(o.Placed)), bytes.Compare(k.ID[:], o.ID[:]))
}

// Next returns the least key above k.
func (k Key) Next() Key {
	for i := len(k.ID) - 1; i >= 0; i-- {
		if k.ID[i]++; k.ID[i] != 0 {
			return k
		}
	}
	k.Placed++
	return k
}

// Append appends the encoding of the key.
func (k Key) Append(to []byte) []byte {
	return append(binary.BigEndian.AppendUint64(to, uint64(k.Placed)), k.ID[:]...)
}

// Decode is the inverse of Append. It returns false if raw does not have the length of a key.
func Decode(raw []byte) (k Key, ok bool) {
	if len(raw) != Size {
		return k, false
	}
	k.Placed = int64(binary.BigEndian.Uint64(raw))
	copy(k.ID[:], raw[8:])
	return k, true
}

// Token returns the page token of a page that ends with the key.
func (k Key) Token() string { return base64.RawURLEncoding.EncodeToString(k.Append(nil)) }

// ErrToken is the error about a text that is no page token.
var ErrToken = errors.New("is not a page token of such a list: leave it out to begin again")

// ParseToken is the inverse of Token.
func ParseToken(token string) (Key, error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if k, ok := Decode(raw); err == nil && ok {
		return k, nil
	}
	return Key{}, ErrToken
}

// ParseID returns the bytes of a UUID. It returns false if the text is no UUID in its usual form.
func ParseID(text string) (id [IDBytes]byte, ok bool) {
	const length = 36
	if len(text) != length || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	at := 0
	for _, part := range [...]string{text[:8], text[9:13], text[14:18], text[19:23], text[24:]} {
		n, err := hex.Decode(id[at:], []byte(part))
		if err != nil {
			return [IDBytes]byte{}, false
		}
		at += n
	}
	return id, true
}

// FormatID is the inverse of ParseID.
func FormatID(id []byte) string {
	h := hex.EncodeToString(id)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// Page has records of one region, those with the greatest keys first.
type Page[T any] struct {
	Items []T
	// Next is the key to go on below. The region was read down to it. nil: to the end.
	Next *Key
}

// Merge makes one page of at most limit records from pages of regions that were asked for the same
// range. It leaves out records below a key to which some region was not read, because that region may
// have records between. The rest comes with the next page.
func Merge[T any](pages []Page[T], key func(T) Key, limit int) Page[T] {
	var out Page[T]
	for _, p := range pages {
		out.Items = append(out.Items, p.Items...)
		if p.Next != nil && (out.Next == nil || p.Next.Compare(*out.Next) > 0) {
			out.Next = p.Next
		}
	}
	slices.SortStableFunc(out.Items, func(a, b T) int { return key(b).Compare(key(a)) })
	for i, x := range out.Items {
		if i == limit || out.Next != nil && key(x).Compare(*out.Next) < 0 {
			if i == limit {
				last := key(out.Items[i-1])
				out.Next = &last
			}
			out.Items = out.Items[:i]
			break
		}
	}
	return out
}
