"""The local runtime: sees plain plan and sampling data, never a program. torch is imported only below here."""
