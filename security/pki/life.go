package pki

import "time"

// RenewAt returns when a certificate is renewed: after 50 to 80 % of its life. random is
// within [0, 1), so that the members of a federation do not all renew at the same time.
func RenewAt(notBefore, notAfter time.Time, random float64) time.Time {
	life := notAfter.Sub(notBefore)
	return notBefore.Add(time.Duration((0.5 + 0.3*min(max(random, 0), 1)) * float64(life)))
}

// Ending reports whether less than a tenth of a certificate's life remains. A member whose
// certificate is renewed in time never has such a certificate.
func Ending(notBefore, notAfter, now time.Time) bool {
	life := notAfter.Sub(notBefore)
	if life > Backdate { // else another authority has issued it
		life -= Backdate
	}
	return notAfter.Sub(now) < life/10
}
