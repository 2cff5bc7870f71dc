package plugin

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The versions of the contract. A change of the contract that the other side must know
// needs a new version. An agent also speaks the previous version.
const (
	// Newest and Oldest are the newest and the oldest version that this package speaks.
	Newest = 1
	Oldest = 1
)

// Bounds of the messages and texts of a plugin, in bytes.
const (
	maxMessageBytes = 1 << 20 // bound of a message
	maxMessage      = 4 << 10 // bound of a text for people
	maxVersion      = 64
	maxCapability   = 64
	maxCapabilities = 32
	maxConfig       = 8 << 10 // bound of the form of the config
)

// choose returns the version that a plugin chooses: the greatest one that the agent and the
// plugin speak.
func choose(r *nusav1.HandshakeRequest) (int32, error) {
	v := min(r.GetNewest(), Newest)
	if v < r.GetOldest() || v < Oldest {
		return 0, fmt.Errorf("the plugin speaks the versions %d..%d of the driver contract, the agent %d..%d: build the plugin for the agent's release, or the one before",
			Oldest, Newest, r.GetOldest(), r.GetNewest())
	}
	return v, nil
}

// checkHandshake checks a plugin's response to the handshake.
func checkHandshake(name string, r *nusav1.HandshakeResponse) error {
	if v := r.GetProtocol(); v < Oldest || v > Newest {
		return fmt.Errorf("%w: Handshake: protocol: it chose version %d of the contract, this agent speaks %d..%d", driver.ErrContract, v, Oldest, Newest)
	}
	if r.GetName() != name {
		return fmt.Errorf("%w: Handshake: name: it calls itself %q; is this the right path, or is it --plugin %s=…?",
			driver.ErrContract, clip(r.GetName(), maxVersion), clip(r.GetName(), maxVersion))
	}
	return nil
}

// checkFingerprint checks and converts a plugin's fingerprint. lacks are the capabilities
// that the plugin reports but does not have. The result is without them.
func checkFingerprint(name string, r *nusav1.DriverInfo, lacks []string) driver.Fingerprint {
	bad := func(field, format string, args ...any) driver.Fingerprint {
		return driver.Fingerprint{Version: clip(r.GetVersion(), maxVersion),
			Message: fmt.Sprintf("%v: Fingerprint: %s: %s", driver.ErrContract, field, fmt.Sprintf(format, args...))}
	}
	if r.GetName() != name {
		return bad("name", "is %q", clip(r.GetName(), maxVersion))
	}
	if n := len(r.GetCapabilities()); n > maxCapabilities {
		return bad("capabilities", "there are %d, at most %d", n, maxCapabilities)
	}
	if n := proto.Size(r.GetConfig()); n > maxConfig {
		return bad("config", "has %d bytes, at most %d", n, maxConfig)
	}
	form := job.ConfigSchemaFromProto(r.GetConfig())
	if err := config.CheckSchema(form); err != nil {
		return bad("config", "%v", err)
	}
	out := driver.Fingerprint{Config: form, Healthy: r.GetHealthy(), Version: clip(r.GetVersion(), maxVersion), Message: clip(r.GetMessage(), maxMessage)}
	for _, c := range r.GetCapabilities() {
		if c == "" || len(c) > maxCapability || strings.IndexFunc(c, notInCapability) >= 0 {
			return bad("capabilities", "%q is not a name of lower-case letters, digits and _", clip(c, maxCapability))
		}
		if !slices.Contains(lacks, c) {
			out.Capabilities = append(out.Capabilities, c)
		}
	}
	slices.Sort(out.Capabilities)
	out.Capabilities = slices.Compact(out.Capabilities)
	if len(lacks) > 0 {
		claim := fmt.Sprintf("it reports %s, but does not have it", strings.Join(lacks, ", "))
		out.Message = strings.TrimPrefix(out.Message+"; "+claim, "; ")
	}
	return out
}

func notInCapability(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_')
}

// checkStatus converts and checks a status.
func checkStatus(r *nusav1.RunStatus) (driver.Status, error) {
	out := driver.Status{PID: int(r.GetPid()), Started: timeFromProto(r.GetStarted())}
	known := false
	for s, wire := range wireStates {
		if wire == r.GetState() {
			out.State, known = s, true
		}
	}
	bad := func(field, format string, args ...any) (driver.Status, error) {
		return driver.Status{}, fmt.Errorf("%w: %s: %s", driver.ErrContract, field, fmt.Sprintf(format, args...))
	}
	switch {
	case !known:
		return bad("state", "%d is none", r.GetState())
	case r.GetPid() < 0:
		return bad("pid", "%d", r.GetPid())
	case r.GetStarted() != nil && !r.GetStarted().IsValid():
		return bad("started", "not a time")
	case out.State != driver.Ended:
		return out, nil
	case !r.GetFinished().IsValid():
		return bad("finished", "not a time, and the run has ended")
	case r.GetExitCode() < -1 || r.GetExitCode() > 255:
		return bad("exit_code", "%d is not within -1..255", r.GetExitCode())
	case r.GetSignal() < 0 || r.GetSignal() > 64:
		return bad("signal", "%d is not within 0..64", r.GetSignal())
	}
	out.OutOfMemory = r.GetOutOfMemory()
	known = false
	for c, wire := range wireCauses {
		if wire == r.GetCause() {
			out.Cause, known = c, true
		}
	}
	if !known {
		return bad("cause", "%d is none", r.GetCause())
	}
	out.Finished, out.ExitCode, out.Signal = timeFromProto(r.GetFinished()), int(r.GetExitCode()), int(r.GetSignal())
	out.Message = clip(r.GetMessage(), maxMessage)
	return out, nil
}

// checkData refuses a piece of output that is too large.
func checkData(field string, data []byte) error {
	if len(data) > driver.MaxChunk {
		return fmt.Errorf("%w: %s: %d bytes in one message, at most %d", driver.ErrContract, field, len(data), driver.MaxChunk)
	}
	return nil
}

// clip changes a plugin's text so that it can be stored and shown. The result is valid
// UTF-8 without control characters. A text of more than most bytes is cut and ends with
// "…".
func clip(s string, most int) string {
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
}
