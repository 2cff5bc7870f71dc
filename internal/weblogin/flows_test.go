package weblogin

import (
	"errors"
	"strconv"
	"testing"
	"time"
)

// TestBounds: the logins in progress are bounded, in all and of one address, and old ones make room.
func TestBounds(t *testing.T) {
	var f flows
	now := time.Unix(1, 0)
	add := func(i int, from string) error {
		return f.add(strconv.Itoa(i), &flow{browser: "b", from: from}, now)
	}
	for i := range maxOfAddress {
		if err := add(i, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(maxOfAddress, "a"); !errors.Is(err, errFull) {
		t.Errorf("one more of an address: %v", err)
	}
	for i := maxOfAddress; i < maxFlows; i++ {
		if err := add(i, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.room("new", now); !errors.Is(err, errFull) {
		t.Errorf("one more: %v", err)
	}
	if _, err := f.take("0", "b", "", now); err != nil {
		t.Error(err)
	}
	if err := add(0, "new"); err != nil {
		t.Errorf("after the end of a login: %v", err)
	}
	now = now.Add(life)
	if _, err := f.take("1", "b", "", now); !errors.Is(err, errUnknown) {
		t.Errorf("a login that has ended: %v", err)
	}
	if err := f.room("a", now); err != nil || len(f.all) != 0 {
		t.Errorf("after %s there are %d logins: %v", life, len(f.all), err)
	}
}

// TestPlaces: a client with a whole network of IPv6 is one client.
func TestPlaces(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:5000": "192.0.2.7", "[::ffff:192.0.2.7]:5000": "192.0.2.7",
		"[2001:db8:1:2::1]:5000": "2001:db8:1:2::/64", "[2001:db8:1:2:ffff::9]:6000": "2001:db8:1:2::/64", "[fe80::1%eth0]:1": "fe80::/64",
		"@": "@",
	} {
		if got := placeOf(remote); got != want {
			t.Errorf("%s is at %s, want %s", remote, got, want)
		}
	}
}
