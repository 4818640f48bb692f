package state

func (p *RoleCampaign) encode(e *encoder) {
	e.string(16, p.Role)
	e.string(17, p.Session)
	e.stringOpt(18, p.Value)
	e.boolOpt(19, p.Wait)
	e.uintOpt(20, uint64(p.TakeoverDelay))
	e.boolOpt(21, p.Ineligible)
}

func (p *RoleCampaign) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.Role)
	case 17:
		return setString(f, &p.Session)
	case 18:
		return setString(f, &p.Value)
	case 19:
		return setBool(f, &p.Wait)
	case 20:
		return setUint(f, &p.TakeoverDelay)
	case 21:
		return setBool(f, &p.Ineligible)
	}
	return nil
}

func (p *RoleWithdraw) encode(e *encoder) { encodeRoleSession(e, p.Role, p.Session) }

func (p *RoleWithdraw) decode(f field) error { return decodeRoleSession(f, &p.Role, &p.Session) }

func (p *RoleRelease) encode(e *encoder) {
	encodeRoleSession(e, p.Role, p.Session)
	e.uintOpt(18, p.Token)
}

func (p *RoleRelease) decode(f field) error {
	if f.num == 18 {
		return setUint(f, &p.Token)
	}
	return decodeRoleSession(f, &p.Role, &p.Session)
}

func encodeRoleSession(e *encoder, role, session string) {
	e.string(16, role)
	e.string(17, session)
}

func decodeRoleSession(f field, role, session *string) error {
	switch f.num {
	case 16:
		return setString(f, role)
	case 17:
		return setString(f, session)
	}
	return nil
}

func (p *RoleTransfer) encode(e *encoder) {
	e.string(16, p.Role)
	e.stringOpt(17, p.ToSession)
	e.uintOpt(18, p.IfStateRevision)
	e.boolOpt(19, p.AwaitPreviousHolder)
}

func (p *RoleTransfer) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.Role)
	case 17:
		return setString(f, &p.ToSession)
	case 18:
		return setUint(f, &p.IfStateRevision)
	case 19:
		return setBool(f, &p.AwaitPreviousHolder)
	}
	return nil
}

func (p *RoleElect) encode(e *encoder) {
	for _, v := range p.Roles {
		e.record(16, func(e *encoder) {
			e.string(1, v.Role)
			e.uintOpt(2, v.StateRevision)
		})
	}
}

func (p *RoleElect) decode(f field) error {
	if f.num != 16 {
		return nil
	}
	var v ElectableRole
	err := eachField(f.raw, func(f field) error {
		switch f.num {
		case 1:
			return setString(f, &v.Role)
		case 2:
			return setUint(f, &v.StateRevision)
		}
		return nil
	})
	p.Roles = append(p.Roles, v)
	return err
}

func (t *Tenure) encode(e *encoder) {
	e.uintOpt(1, t.Token)
	e.stringOpt(2, t.Session)
	e.stringOpt(3, t.Holder)
	e.stringOpt(4, t.Value)
	e.uintOpt(5, uint64(t.AcquiredAt))
	e.uintOpt(6, uint64(t.EndedAt))
	e.stringOpt(7, string(t.Cause))
}

func (t *Tenure) decode(f field) error {
	switch f.num {
	case 1:
		return setUint(f, &t.Token)
	case 2:
		return setString(f, &t.Session)
	case 3:
		return setString(f, &t.Holder)
	case 4:
		return setString(f, &t.Value)
	case 5:
		return setUint(f, &t.AcquiredAt)
	case 6:
		return setUint(f, &t.EndedAt)
	case 7:
		return setString(f, &t.Cause)
	}
	return nil
}

func (c *Candidate) encode(e *encoder) {
	e.string(1, c.Session)
	e.stringOpt(2, c.Name)
	e.stringOpt(3, c.Value)
	e.uintOpt(4, uint64(c.TakeoverDelay))
	e.boolOpt(5, c.Ineligible)
	e.uintOpt(6, c.Since)
}

func (c *Candidate) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &c.Session)
	case 2:
		return setString(f, &c.Name)
	case 3:
		return setString(f, &c.Value)
	case 4:
		return setUint(f, &c.TakeoverDelay)
	case 5:
		return setBool(f, &c.Ineligible)
	case 6:
		return setUint(f, &c.Since)
	}
	return nil
}

func (r *Role) encode(e *encoder) {
	e.string(1, r.Name)
	if r.Held() {
		e.record(2, r.Current.encode)
	}
	for i := range r.Queue {
		e.record(3, r.Queue[i].encode)
	}
	for i := range r.History {
		e.record(4, r.History[i].encode)
	}
	e.uintOpt(5, r.StateRevision)
	e.uintOpt(6, r.Elections)
	e.boolOpt(7, r.TakeoverPending)
	e.stringOpt(8, r.RevokedFrom)
	e.uintOpt(9, uint64(r.LockDelay))
}

func (r *Role) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &r.Name)
	case 2:
		return eachField(f.raw, r.Current.decode)
	case 3:
		var c Candidate
		err := eachField(f.raw, c.decode)
		r.Queue = append(r.Queue, c)
		return err
	case 4:
		var t Tenure
		err := eachField(f.raw, t.decode)
		r.History = append(r.History, t)
		return err
	case 5:
		return setUint(f, &r.StateRevision)
	case 6:
		return setUint(f, &r.Elections)
	case 7:
		return setBool(f, &r.TakeoverPending)
	case 8:
		return setString(f, &r.RevokedFrom)
	case 9:
		return setUint(f, &r.LockDelay)
	}
	return nil
}

func (ev *RoleEvent) encode(e *encoder) {
	e.string(1, ev.Role)
	e.boolOpt(2, ev.Elected)
	e.record(3, ev.Tenure.encode)
}

func (ev *RoleEvent) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &ev.Role)
	case 2:
		return setBool(f, &ev.Elected)
	case 3:
		return eachField(f.raw, ev.Tenure.decode)
	}
	return nil
}
