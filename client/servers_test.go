package client_test

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/client"
)

func TestAddressWithoutPortGetsTheDefaultPort(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:7600", "127.0.0.1:7610": "127.0.0.1:7610", "g1.example": "g1.example:7600", "g1.example:1": "g1.example:1",
		"::1": "[::1]:7600", "[::1]": "[::1]:7600", "[::1]:7610": "[::1]:7610", "localhost": "localhost:7600",
	} {
		if got, err := client.Address(addr); got != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", addr, got, err, want)
		}
	}
}

func TestColonWithoutPortIsRefused(t *testing.T) {
	const want = "no port follows the colon of localhost:: give a port, or leave the colon out for port 7600"
	for _, addr := range []string{"localhost:", "127.0.0.1:7600,localhost:"} {
		if _, err := client.Addresses(addr); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", addr, err, want)
		}
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for addr, want := range map[string]string{
		"foo:bar:1": `"foo:bar:1" is not HOST[:PORT]`, "h:99999": `"h:99999": "99999" is not a port of 1..65535`, "h:1,h:0": `"0" is not a port`,
		"h:-1": `"-1" is not a port`, "h:grpc": `"grpc" is not a port`, "[h:1": "is not HOST[:PORT]", "h:1,,h:2": "an address is empty",
		"h": "", "h:65535": "", "::1,[::1]:1, 127.0.0.1": "",
	} {
		if _, err := client.Addresses(addr); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
}
